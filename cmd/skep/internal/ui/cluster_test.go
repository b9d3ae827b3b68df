package ui

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/cluster"
)

// reports is a node's report.
func reports(name string, short []string, applications ...v1alpha1.NodeApplication) v1alpha1.BpfNode {
	n := v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Loaded, n.Status.Applications = short, applications
	return n
}

func TestAFleetIsOfWhatNodesReport(t *testing.T) {
	app := cluster.Defined{Application: cluster.Application{Identity: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}}, UID: "one"}
	app.Status.Signers, app.Status.Policies = []string{"ci", "gone"}, []string{"baseline", "team/own"}
	app.Status.Rollout = &v1alpha1.RolloutStatus{State: v1alpha1.RolloutPaused}
	f := cluster.Fleet{
		Applications: []cluster.Defined{app},
		Nodes: []v1alpha1.BpfNode{
			reports("d", nil, v1alpha1.NodeApplication{UID: "one", Serial: 4, State: v1alpha1.NodeFailed, Message: "the verifier rejects it"}),
			reports("a", []string{"one:7", "other:9", "torn"}),
			reports("c", nil, v1alpha1.NodeApplication{UID: "other", State: v1alpha1.NodeLoaded}),
			reports("b", []string{"one:4"}),
		},
		Signers: []v1alpha1.BpfSigner{{ObjectMeta: metav1.ObjectMeta{Name: "ci"}, Spec: v1alpha1.BpfSignerSpec{Keyless: &v1alpha1.KeylessSigner{
			Identities: []v1alpha1.IdentityMatch{{Issuer: "https://issuer", SubjectRegExp: "https://git/.*"}}}}}},
		Policies: []v1alpha1.BpfPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "own"}}},
		Needs:    []string{"list clusterbpfpolicies.skep.dev"},
	}
	o := overviewOfCluster("prod", f)
	// Nodes are in the order of their names; b runs the version before a's.
	if got := o.Applications[0].States; got != "LR.F" {
		t.Errorf("the states are %q", got)
	}
	if diff := cmp.Diff(map[int]string{3: "the verifier rejects it"}, o.Applications[0].Messages); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Signer{{Name: "ci", Kind: "identity", Detail: "https://git/.* of https://issuer"}, {Name: "gone"}}, o.Signers); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Policy{{Name: "team/own", Scope: "namespace team"}, {Name: "baseline", Scope: "built in"}}, o.Policies); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"list clusterbpfpolicies.skep.dev"}, o.Needs); diff != "" {
		t.Error(diff)
	}
}

// TestATenantSeesHowManyNodesRunIt as the controller counted them, without the right to list nodes.
func TestATenantSeesHowManyNodesRunIt(t *testing.T) {
	app := cluster.Defined{UID: "one"}
	app.Status.Nodes = &v1alpha1.NodesStatus{Selected: 7, Loaded: 3, Failed: 1, Pending: 1, Unreachable: 1, NotReported: 1}
	a := overviewOfCluster("prod", cluster.Fleet{Applications: []cluster.Defined{app}}).Applications[0]
	rollout, nodes := a.Stages[4], a.Stages[5]
	if rollout.Title != "Everywhere" || nodes.Title != "Loaded on 3 of 7" || nodes.State != StageFailed || a.States != "" {
		t.Errorf("it shows %+v, %+v, of %q", rollout, nodes, a.States)
	}
}

// TestWhatNodesSayIsBounded for all applications together.
func TestWhatNodesSayIsBounded(t *testing.T) {
	var f cluster.Fleet
	for i := range 200 {
		f.Applications = append(f.Applications, cluster.Defined{UID: strconv.Itoa(i)})
	}
	for range maxMessages {
		n := reports("node", nil)
		for i := range f.Applications {
			n.Status.Applications = append(n.Status.Applications, v1alpha1.NodeApplication{UID: strconv.Itoa(i), State: v1alpha1.NodeFailed,
				Message: strings.Repeat("x", maxMessage)})
		}
		f.Nodes = append(f.Nodes, n)
	}
	said := 0
	for _, a := range overviewOfCluster("prod", f).Applications {
		for _, message := range a.Messages {
			said += len(message)
		}
	}
	if said > maxAllMessages || said < maxAllMessages-maxMessage {
		t.Errorf("%d bytes of messages are kept", said)
	}
}

func TestWhatBroughtAnApplication(t *testing.T) {
	for want, meta := range map[string]metav1.ObjectMeta{
		"Flux: Kustomization flux-system/bpf, generation 2": {Labels: map[string]string{
			"kustomize.toolkit.fluxcd.io/name": "bpf", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}},
		"Flux: HelmRelease flux-system/bpf, generation 2": {Labels: map[string]string{
			"helm.toolkit.fluxcd.io/name": "bpf", "helm.toolkit.fluxcd.io/namespace": "flux-system"}},
		"Argo CD: application bpf, generation 2":     {Annotations: map[string]string{"argocd.argoproj.io/tracking-id": "bpf:skep.dev/BpfApplication:a/b"}},
		"Helm: release bpf, generation 2":            {Annotations: map[string]string{"meta.helm.sh/release-name": "bpf"}},
		"changed by alice@example.com, generation 2": {Annotations: map[string]string{v1alpha1.AnnotationRequester: `{"username":"alice@example.com"}`}},
		"generation 2": {Annotations: map[string]string{v1alpha1.AnnotationRequester: `torn`}},
	} {
		meta.Generation = 2
		if got := cameBy(cluster.Defined{Meta: meta}); got != want {
			t.Errorf("it is %q, want %q", got, want)
		}
	}
}

func TestANodeThatCannotBeAskedShowsItsReport(t *testing.T) {
	n := reports("a", nil, v1alpha1.NodeApplication{Kind: v1alpha1.KindClusterBpfApplication, Name: "app", UID: "one", State: v1alpha1.NodeFailed, Message: "why"})
	n.Status.Unmanaged = []v1alpha1.UnmanagedProgram{{ID: 7, Type: "XDP", Name: "theirs", LoadedBy: "cilium-agent"}}
	v := viewOf(n, errors.New("the API view.skep.dev is off"))
	if len(v.LeftOut) != 1 || !strings.HasSuffix(v.LeftOut[0], ": the API view.skep.dev is off") {
		t.Errorf("it leaves out %q", v.LeftOut)
	}
	if len(v.Applications) != 1 || v.Applications[0].Name != "app" || v.Applications[0].Message != "why" ||
		len(v.Programs) != 1 || v.Programs[0].Holders[0].Name != "cilium-agent" {
		t.Errorf("it shows %+v, %+v", v.Applications, v.Programs)
	}
}

func TestCostsAreKeptForAWhile(t *testing.T) {
	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	at := func(i int) view.NodeView {
		n := view.NodeView{Programs: []view.Program{{ID: 1, Name: "mine", Chain: true}, {ID: 2, Name: "theirs"}, {ID: 3, Name: "idle"}}}
		for j := range 2 {
			measured := metav1.NewTime(start.Add(time.Duration(i) * 15 * time.Second))
			n.Programs[j].Cost = &view.Cost{Measured: measured, WindowSeconds: 1, Runs: 10, Nanoseconds: uint64(j+1) * 1e7}
		}
		return n
	}
	h := newHistory()
	for i := range 2 * maxWindows {
		// A window is there once, however often the node is asked.
		h.add("a", at(i))
		h.add("a", at(i))
	}
	all := h.add("a", view.NodeView{})
	if len(all) != maxWindows || all[0].At.Sub(all[len(all)-1].At) != -(maxWindows-1)*15*time.Second {
		t.Fatalf("%d windows, from %s to %s", len(all), all[0].At, all[len(all)-1].At)
	}
	want := []sample{{ID: 2, Name: "theirs", Share: 0.02, Rate: 10, Each: 2e6}, {ID: 1, Name: "mine", Ours: true, Share: 0.01, Rate: 10, Each: 1e6}}
	if diff := cmp.Diff(want, all[0].Programs); diff != "" {
		t.Error(diff)
	}
	// The node's clock is set back, and then runs on.
	if all := h.add("a", at(2*maxWindows-3)); len(all) != maxWindows-2 || all[len(all)-1].At != start.Add((2*maxWindows-3)*15*time.Second) {
		t.Errorf("after the clock was set back there are %d windows, to %s", len(all), all[len(all)-1].At)
	}
	// Somebody looks again after an hour.
	if all := h.add("a", at(2*maxWindows+240)); len(all) != 1 {
		t.Errorf("%d windows are shown beside one of an hour later", len(all)-1)
	}
	for i := range maxNodes {
		h.add(string(rune('b'+i)), at(0))
	}
	if got := h.add("a", view.NodeView{}); len(got) != 0 {
		t.Errorf("%d windows of a node are kept though no view showed it lately", len(got))
	}
}
