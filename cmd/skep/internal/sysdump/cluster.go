package sysdump

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/cluster"
)

// The bounds of what is read of each node or pod.
const (
	maxViews = 20
	maxLogs  = 20
	logLines = 2000
	maxLog   = 2 * maxFile
)

// inCluster reads a cluster.
type inCluster struct {
	*dump
	client *cluster.Client

	// home is the namespace of Skep.
	home string
	// applications and nodes are what was listed, those that fail first, and pods are Skep's in the same way.
	applications []v1alpha1.Identity
	nodes        []string
	pods         []pod
}

// pod is a pod of Skep's, with the names of its containers and of those that started more than once.
type pod struct {
	name                  string
	containers, restarted []string
}

// clusterSteps read a cluster. Intents and applications are first: what others say of their variables is scrubbed.
func clusterSteps(d *dump, c *cluster.Client) []step {
	in := &inCluster{dump: d, client: c}
	steps := []step{
		{"versions", in.versions},
		{"intents", in.intents},
		{"applications", in.allApplications},
	}
	rules := []string{"every object", "conditions", "bpfpolicies"}
	if d.policies {
		rules = append(rules, "bpfpolicies with their rules")
	}
	for _, l := range []struct {
		resource string
		isGlobal bool
		keep     []string
	}{
		{"bpfpolicies", false, rules},
		{"clusterbpfpolicies", true, rules},
		{"bpfsigners", true, []string{"every object", "conditions", "bpfsigners"}},
		{"bpfimages", true, []string{"every object", "bpfimages"}},
		{"cueartifacts", false, []string{"every object", "conditions", "cueartifacts"}},
	} {
		steps = append(steps, step{l.resource, func(ctx context.Context) {
			in.list(ctx, l.resource+".json", cluster.Ref{API: v1alpha1.APIVersion, Resource: l.resource}, !l.isGlobal, shapeOf(l.keep...), nil)
		}})
	}
	return append(steps,
		step{"nodes", in.allNodes},
		step{"events", in.events},
		step{"workloads", in.workloads},
		step{"webhooks and APIs", in.entryPoints},
		step{"what nodes run", in.views},
		step{"logs", in.logs},
	)
}

// versions tells of the API server, and how the parts of Skep do.
func (in *inCluster) versions(ctx context.Context) {
	v, err := in.client.Version(ctx)
	in.typed("kubernetes.json", v, err)
	in.home = in.client.Home(ctx)
	health, _ := in.client.Health(ctx)
	in.typed("health.json", health, nil)
}

// list adds the objects of a list that the caller may read: of all namespaces, or else of the caller's. see sees each before it is
// redacted.
func (in *inCluster) list(ctx context.Context, file string, r cluster.Ref, namespaced bool, keep *shape, see func(map[string]any)) {
	if namespaced && in.client.Chosen && r.Namespace == "" {
		r.Namespace = in.client.Namespace
	}
	l := in.newList()
	read := func() error {
		return in.client.Each(ctx, r, func(o map[string]any) bool {
			if see != nil {
				see(o)
			}
			return l.put(keep.redact(o, in.text)) || see != nil
		})
	}
	err := read()
	if cluster.IsForbidden(err) && namespaced && r.Namespace == "" {
		in.lackRight(file+" of every namespace", r, err)
		r.Namespace = in.client.Namespace
		err = read()
	}
	in.lackRight(file, r, err)
	if err == nil || l.count > 0 {
		in.archive.list(file, l)
	}
}

// lackRight notes what could not be read, with the right that is missing if that is why.
func (in *inCluster) lackRight(what string, r cluster.Ref, err error) {
	switch {
	case cluster.IsForbidden(err):
		in.lack(what, fmt.Errorf("it needs the right to %s", r.Right()))
	case err != nil:
		in.lack(what, err)
	}
}

// intents adds which intents there are, and learns what is not to be in texts: what nodes run may be older than its definition.
func (in *inCluster) intents(ctx context.Context) {
	r := cluster.Ref{API: v1alpha1.APIVersion, Resource: "bpfintents"}
	in.list(ctx, "bpfintents.json", r, false, shapeOf("every object", "bpfintents"), func(o map[string]any) {
		envelope, _, _ := unstructured.NestedString(o, "spec", "envelope")
		if body, err := base64.StdEncoding.DecodeString(envelope); err == nil {
			in.learnSealed(body)
		}
	})
}

// allApplications adds the applications, and learns what is not to be in texts.
func (in *inCluster) allApplications(ctx context.Context) {
	var failed, others []v1alpha1.Identity
	keep := shapeOf("every object", "conditions", "bpfapplications")
	for _, kind := range []string{v1alpha1.KindClusterBpfApplication, v1alpha1.KindBpfApplication} {
		resource := strings.ToLower(kind) + "s"
		in.list(ctx, resource+".json", cluster.Ref{API: v1alpha1.APIVersion, Resource: resource}, kind == v1alpha1.KindBpfApplication, keep,
			func(o map[string]any) {
				in.learn(o)
				u := unstructured.Unstructured{Object: o}
				id := v1alpha1.Identity{Kind: kind, Namespace: u.GetNamespace(), Name: u.GetName()}
				if isReady(o) {
					others = append(others, id)
					return
				}
				failed = append(failed, id)
			})
	}
	in.applications = slices.Concat(failed, others)
}

// isReady reports whether the condition Ready of an object is not False.
func isReady(o map[string]any) bool {
	conditions, _, _ := unstructured.NestedSlice(o, "status", "conditions")
	return !slices.ContainsFunc(conditions, func(one any) bool {
		c, _ := one.(map[string]any)
		return c["type"] == v1alpha1.ConditionReady && c["status"] == "False"
	})
}

// allNodes adds the reports of nodes.
func (in *inCluster) allNodes(ctx context.Context) {
	var failed, others []string
	in.list(ctx, "bpfnodes.json", cluster.Ref{API: v1alpha1.APIVersion, Resource: "bpfnodes"}, false,
		shapeOf("every object", "conditions", "bpfnodes"), func(o map[string]any) {
			name := (&unstructured.Unstructured{Object: o}).GetName()
			counts, _, _ := unstructured.NestedMap(o, "status", "counts")
			if isReady(o) && !isPositive(counts["failed"]) {
				others = append(others, name)
				return
			}
			failed = append(failed, name)
		})
	in.nodes = slices.Concat(failed, others)
}

// isPositive reports whether a value of JSON is a number above zero.
func isPositive(value any) bool {
	number, _ := value.(json.Number)
	n, err := number.Int64()
	return err == nil && n > 0
}

// events adds the events of Skep's objects, and of its namespace.
func (in *inCluster) events(ctx context.Context) {
	keep := shapeOf("every object", "events")
	in.list(ctx, "events.json", cluster.Ref{Resource: "events", Fields: "involvedObject.apiVersion=" + v1alpha1.APIVersion}, true, keep, nil)
	in.list(ctx, "skep/events.json", cluster.Ref{Namespace: in.home, Resource: "events"}, true, keep, nil)
}

// workloads adds what runs Skep.
func (in *inCluster) workloads(ctx context.Context) {
	keep := shapeOf("every object", "conditions", "workloads", "pod at spec.template.spec")
	for _, resource := range []string{"deployments", "daemonsets"} {
		in.list(ctx, "skep/"+resource+".json", cluster.Ref{API: "apps/v1", Namespace: in.home, Resource: resource}, true, keep, nil)
	}
	keep = shapeOf("every object", "conditions", "pods", "pod at spec")
	in.list(ctx, "skep/pods.json", cluster.Ref{Namespace: in.home, Resource: "pods"}, true, keep, func(o map[string]any) {
		p := pod{name: (&unstructured.Unstructured{Object: o}).GetName()}
		for _, one := range objects(o, "spec", "containers") {
			p.containers = append(p.containers, fmt.Sprint(one["name"]))
		}
		for _, one := range objects(o, "status", "containerStatuses") {
			if isPositive(one["restartCount"]) {
				p.restarted = append(p.restarted, fmt.Sprint(one["name"]))
			}
		}
		in.pods = append(in.pods, p)
	})
	// There are few controllers and many agents.
	slices.SortStableFunc(in.pods, func(a, b pod) int {
		return cmp.Or(cmp.Compare(len(b.restarted), len(a.restarted)), cmp.Compare(strings.Count(a.name, "agent"), strings.Count(b.name, "agent")))
	})
}

// objects are those of a list in an object.
func objects(o map[string]any, path ...string) (all []map[string]any) {
	found, _, _ := unstructured.NestedSlice(o, path...)
	for _, one := range found {
		if m, ok := one.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

// entryPoints adds the webhooks, and what the API server has Skep answer.
func (in *inCluster) entryPoints(ctx context.Context) {
	const admission, registration = "admissionregistration.k8s.io/v1", "apiregistration.k8s.io/v1"
	for _, one := range []struct {
		section string
		ref     cluster.Ref
	}{
		{"webhooks", cluster.Ref{API: admission, Resource: "validatingwebhookconfigurations", Name: "skep"}},
		{"webhooks", cluster.Ref{API: admission, Resource: "mutatingwebhookconfigurations", Name: "skep"}},
		{"apiservices", cluster.Ref{API: registration, Resource: "apiservices", Name: view.Version + "." + view.Group}},
		{"apiservices", cluster.Ref{API: registration, Resource: "apiservices", Name: view.Version + ".maps." + v1alpha1.Group}},
	} {
		file := fmt.Sprintf("skep/%s-%s.json", one.ref.Resource, one.ref.Name)
		o, err := in.client.Read(ctx, one.ref)
		if err != nil {
			in.lackRight(file, one.ref, err)
			continue
		}
		in.json(file, shapeOf("every object", "conditions", one.section).redact(o, in.text))
	}
}

// views adds what nodes say that they run, or, for a caller who may not read that, what they say of its applications.
func (in *inCluster) views(ctx context.Context) {
	for _, name := range in.nodes[:min(len(in.nodes), maxViews)] {
		found, err := in.client.Node(ctx, name)
		in.typed("nodes/"+name+".json", found, err)
	}
	if len(in.nodes) > 0 {
		return
	}
	for _, id := range in.applications[:min(len(in.applications), maxViews)] {
		found, err := in.client.Nodes(ctx, id)
		in.typed("applications/"+strings.ReplaceAll(id.String(), "/", "_")+".json", found, err)
	}
}

// logs adds the last lines of Skep's containers, and of those that ended before.
func (in *inCluster) logs(ctx context.Context) {
	for i, p := range in.pods {
		if i == maxLogs {
			in.lack("skep/logs", fmt.Errorf("logs of %d pods are left out: those of %d are read", len(in.pods)-maxLogs, maxLogs))
			return
		}
		for _, container := range p.containers {
			err := in.log(ctx, p.name, container, false)
			if err == nil && slices.Contains(p.restarted, container) {
				err = in.log(ctx, p.name, container, true)
			}
			if errors.Is(err, errNoMore) {
				return
			}
		}
	}
}

// errNoMore reports that no log can be read.
var errNoMore = errors.New("the caller may read no log")

// log adds the log of a container.
func (in *inCluster) log(ctx context.Context, name, container string, previous bool) error {
	file := fmt.Sprintf("skep/logs/%s-%s.log", name, container)
	if previous {
		file = fmt.Sprintf("skep/logs/%s-%s.previous.log", name, container)
	}
	body, err := in.client.Log(ctx, in.home, name, container, previous, logLines, maxLog)
	switch {
	case cluster.IsForbidden(err):
		in.lack("skep/logs", fmt.Errorf("it needs the right to get pods/log in namespace %s", in.home))
		return errNoMore
	case err != nil:
		in.lack(file, err)
		return nil
	}
	if len(body) == maxLog {
		body = body[:bytes.LastIndexByte(body, '\n')+1]
	}
	in.tail(file, body, in.scrubber.log)
	return nil
}
