package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/cluster"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/text"
)

// aCluster asks an API server as the user.
type aCluster struct{ client *cluster.Client }

// NewCluster returns the source of a cluster.
func NewCluster(c *cluster.Client) Source { return aCluster{c} }

// Overview implements Source.
func (c aCluster) Overview(ctx context.Context) (Overview, error) {
	f, err := c.client.Fleet(ctx)
	if err != nil {
		return Overview{}, err
	}
	return overviewOfCluster(strings.TrimPrefix(c.client.Place, "cluster "), f), nil
}

// Node implements Source. What a node reported to the API server is better than nothing, where it cannot be asked itself.
func (c aCluster) Node(ctx context.Context, name string) (view.NodeView, error) {
	n, err := c.client.Node(ctx, name)
	if err == nil {
		return n, nil
	}
	report, reportErr := c.client.Report(ctx, name)
	if reportErr != nil {
		return view.NodeView{}, err
	}
	return viewOf(report, err), nil
}

// Application implements Source.
func (c aCluster) Application(ctx context.Context, id v1alpha1.Identity) (view.NodeViewList, error) {
	return c.client.View(ctx, id)
}

// viewOf is what a node's report tells of it.
func viewOf(n v1alpha1.BpfNode, why error) view.NodeView {
	v := view.NodeView{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Agent: n.Status.Agent, Kernel: n.Status.Kernel, Applications: []view.Application{},
		LeftOut: []string{"Only what the node reported to the API server is shown, without interfaces, pods and counts: " + why.Error()}}
	for _, a := range n.Status.Applications {
		v.Applications = append(v.Applications, view.Application{Identity: v1alpha1.Identity{Kind: a.Kind, Namespace: a.Namespace, Name: a.Name},
			UID: a.UID, State: a.State, Message: a.Message, Attachments: []view.Attachment{}})
	}
	for _, p := range n.Status.Unmanaged {
		one := view.Program{ID: uint32(p.ID), Type: p.Type, Name: p.Name}
		if p.LoadedBy != "" {
			one.Holders = []view.Process{{Name: p.LoadedBy}}
		}
		v.Programs = append(v.Programs, one)
	}
	return v
}

// overviewOfCluster is the overview of what the user may read.
func overviewOfCluster(place string, f cluster.Fleet) Overview {
	o := Overview{Place: place, Cluster: true, Nodes: []Node{}, Applications: []Application{}, Signers: signersOf(f), Policies: policiesOf(f),
		Needs: f.Needs, Notes: []string{}}
	reports := make([]map[string]report, 0, len(f.Nodes))
	slices.SortFunc(f.Nodes, func(a, b v1alpha1.BpfNode) int { return cmp.Compare(a.Name, b.Name) })
	for i := range f.Nodes {
		n := &f.Nodes[i]
		o.Nodes = append(o.Nodes, Node{Name: n.Name, Kernel: n.Status.Kernel.Release, Agent: n.Status.Agent.Version, Loaded: n.Status.Counts.Loaded,
			Failed: n.Status.Counts.Failed, Programs: n.Status.Counts.Programs, Unmanaged: n.Status.Counts.Unmanaged})
		reports = append(reports, reportsOf(n))
	}
	room := maxAllMessages
	for _, a := range f.Applications {
		o.Applications = append(o.Applications, definedOf(a, reports, &room))
	}
	return o
}

// reportsOf are what a node says of applications, by UID.
func reportsOf(n *v1alpha1.BpfNode) map[string]report {
	all := make(map[string]report, len(n.Status.Applications)+len(n.Status.Loaded))
	for _, one := range n.Status.Loaded {
		uid, serial, _ := strings.Cut(one, ":")
		if version, err := strconv.ParseInt(serial, 10, 64); err == nil {
			all[uid] = report{letter: letterOf(v1alpha1.NodeLoaded), serial: version}
		}
	}
	for _, a := range n.Status.Applications {
		all[a.UID] = report{letterOf(a.State), a.Serial, a.Message}
	}
	return all
}

// report is what a node says of an application.
type report struct {
	letter  byte
	serial  int64
	message string
}

// definedOf is an application, with what each node says of it. Messages take of the room, in bytes.
func definedOf(d cluster.Defined, reports []map[string]report, room *int) Application {
	s := d.Status
	a := Application{Identity: d.Identity, Image: d.Image, Digest: s.Digest,
		Signers: append([]string{}, s.Signers...), Policies: append([]string{}, s.Policies...),
		Reasons: append([]policies.Reason{}, d.Denied...), Warnings: []policies.Reason{}, Audited: []policies.Reason{}, Messages: map[int]string{}}
	newest := int64(0)
	for _, node := range reports {
		newest = max(newest, node[d.UID].serial)
	}
	letters := make([]byte, 0, len(reports))
	for i, node := range reports {
		on, reported := node[d.UID]
		switch {
		case !reported:
			on.letter = unreported
		// The node speaks of the version that it runs.
		case s.Rollout != nil && on.letter == letterOf(v1alpha1.NodeLoaded) && on.serial < newest:
			on.letter = letterOf(v1alpha1.NodeRetained)
		}
		letters = append(letters, on.letter)
		if message := text.Cut(on.message, maxMessage); message != "" && len(a.Messages) < maxMessages && len(message) <= *room {
			a.Messages[i] = message
			*room -= len(message)
		}
	}
	a.States = string(letters)
	counted := a.States
	if len(reports) == 0 {
		counted = countedBy(s.Nodes)
	}
	a.describe(progress{File: cameBy(d), Image: d.Image, Digest: s.Digest, Programs: d.Programs, Conditions: s.Conditions, Reasons: a.Reasons,
		Suspended: d.Suspended, Rollout: s.Rollout, Cluster: true, States: counted})
	return a
}

// countedBy are the letters of the nodes that the controller counted, for those who may not read the nodes.
func countedBy(n *v1alpha1.NodesStatus) string {
	if n == nil {
		return ""
	}
	var all strings.Builder
	for _, of := range []struct {
		state v1alpha1.NodeState
		count int32
	}{
		{v1alpha1.NodeLoaded, n.Loaded}, {v1alpha1.NodeFailed, n.Failed}, {v1alpha1.NodeUnsupported, n.Unsupported},
		{v1alpha1.NodeRetained, n.Retained}, {v1alpha1.NodePending, n.Pending + n.Unreachable + n.NotReported},
	} {
		all.WriteString(strings.Repeat(string(letterOf(of.state)), int(min(max(of.count, 0), maxCounted))))
	}
	return all.String()
}

// maxCounted is more nodes than a cluster has.
const maxCounted = 20_000

// cameBy says what brought an application to the cluster: the marks of Flux, Argo CD and Helm, or who changed it last.
func cameBy(d cluster.Defined) string {
	labels, annotations := d.Meta.Labels, d.Meta.Annotations
	who := policies.Requester{}
	_ = json.Unmarshal([]byte(annotations[v1alpha1.AnnotationRequester]), &who)
	argo, _, _ := strings.Cut(annotations["argocd.argoproj.io/tracking-id"], ":")
	generation := fmt.Sprintf("generation %d", d.Meta.Generation)
	switch {
	case labels["kustomize.toolkit.fluxcd.io/name"] != "":
		return fmt.Sprintf("Flux: Kustomization %s/%s, %s", labels["kustomize.toolkit.fluxcd.io/namespace"], labels["kustomize.toolkit.fluxcd.io/name"], generation)
	case labels["helm.toolkit.fluxcd.io/name"] != "":
		return fmt.Sprintf("Flux: HelmRelease %s/%s, %s", labels["helm.toolkit.fluxcd.io/namespace"], labels["helm.toolkit.fluxcd.io/name"], generation)
	case argo != "":
		return "Argo CD: application " + argo + ", " + generation
	case annotations["meta.helm.sh/release-name"] != "":
		return "Helm: release " + annotations["meta.helm.sh/release-name"] + ", " + generation
	case who.Username != "":
		return "changed by " + who.Username + ", " + generation
	}
	return generation
}

// signersOf are those of the cluster, and those that only applications name.
func signersOf(f cluster.Fleet) []Signer {
	all := []Signer{}
	for _, s := range f.Signers {
		one := Signer{Name: s.Name, Kind: "key", Revoked: s.Spec.Revoked}
		if s.Spec.Keyless != nil {
			one.Kind = "identity"
			for _, id := range s.Spec.Keyless.Identities {
				one.Detail = strings.TrimPrefix(one.Detail+", "+cmp.Or(id.Subject, id.SubjectRegExp)+" of "+cmp.Or(id.Issuer, id.IssuerRegExp), ", ")
			}
			one.Detail = text.Cut(one.Detail, maxMessage)
		}
		if s.Spec.RevokedAfter != nil {
			one.Detail = strings.TrimPrefix(one.Detail+"; revoked after "+s.Spec.RevokedAfter.UTC().Format("2006-01-02 15:04"), "; ")
		}
		all = append(all, one)
	}
	for _, a := range f.Applications {
		for _, name := range a.Status.Signers {
			if !slices.ContainsFunc(all, func(s Signer) bool { return s.Name == name }) {
				all = append(all, Signer{Name: name})
			}
		}
	}
	return all
}

// policiesOf are those of the cluster and of namespaces, and those that only applications name, such as the built-in ones.
func policiesOf(f cluster.Fleet) []Policy {
	all := []Policy{}
	ready := func(conditions []metav1.Condition) string {
		if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); c != nil {
			return string(c.Status)
		}
		return ""
	}
	for _, p := range f.ClusterPolicies {
		scope := "the whole cluster"
		if m := p.Spec.Match; m != nil && len(m.Namespaces) > 0 {
			scope = text.Cut("namespaces "+strings.Join(m.Namespaces, ", "), maxMessage)
		}
		all = append(all, Policy{Name: p.Name, Mode: string(p.Spec.Mode), Scope: scope, Ready: ready(p.Status.Conditions)})
	}
	for _, p := range f.Policies {
		all = append(all, Policy{Name: p.Namespace + "/" + p.Name, Mode: string(p.Spec.Mode), Scope: "namespace " + p.Namespace, Ready: ready(p.Status.Conditions)})
	}
	for _, a := range f.Applications {
		for _, name := range a.Status.Policies {
			if !slices.ContainsFunc(all, func(p Policy) bool { return p.Name == name }) {
				all = append(all, Policy{Name: name, Scope: "built in"})
			}
		}
	}
	return all
}
