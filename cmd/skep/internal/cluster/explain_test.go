package cluster

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

// explained is an application as people read it.
func explained(t *testing.T, c *Client, name string) string {
	t.Helper()
	e, err := c.Explain(t.Context(), name, "")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := PrintExplanation(&out, "text", e); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// onNodes has an application run on node a, and be rejected by the verifier on the others.
func onNodes(t *testing.T) *fake {
	t.Helper()
	f := installed(t)
	ago := metav1.NewTime(time.Now().Add(-90 * time.Minute))
	one := ready("", "firewall")
	one.Status.Conditions = []metav1.Condition{
		{Type: "Ready", Status: "False", Reason: "Failed", Message: "it fails on b, and 1 more", LastTransitionTime: ago},
		{Type: "Allowed", Status: "True", Reason: "Allowed", Message: "allowed by baseline", LastTransitionTime: ago}}
	one.Status.History = []v1alpha1.ApplicationVersion{
		{Version: 2, Time: ago, Result: "Failed", Digest: "sha256:aa", SignedBy: "release", Changes: []string{"variable sampling"}},
		{Version: 1, Time: metav1.NewTime(ago.Add(-30 * 24 * time.Hour)), Result: "Deployed", Digest: "sha256:bb", SignedBy: "release"}}
	f.objects[of("clusterbpfapplications", "firewall")] = one
	report := func(node string, state v1alpha1.NodeState, message string) v1alpha1.BpfNode {
		return v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: v1alpha1.BpfNodeStatus{Applications: []v1alpha1.NodeApplication{
			{UID: "uid-of-app", State: state, Message: message}}}}
	}
	f.objects[of("bpfnodes")] = []any{report("a", v1alpha1.NodeLoaded, ""), report("b", v1alpha1.NodeFailed, "the verifier rejects it"),
		report("c", v1alpha1.NodeFailed, "the verifier rejects it")}
	runs := uint64(1234)
	sees := func(node string, a view.Application) view.NodeView {
		return view.NodeView{ObjectMeta: metav1.ObjectMeta{Name: node}, Applications: []view.Application{a}}
	}
	rejected := view.Application{Error: "load drop_some: the verifier rejects it",
		VerifierLog: "; return *data; @ drop.c:7\n3: (61) r0 = *(u32 *)(r1 +0)\ninvalid access"}
	f.objects["/apis/view.skep.dev/v1alpha1/clusterbpfapplications/firewall/view"] = []any{
		sees("a", view.Application{Attachments: []view.Attachment{{Program: "drop_some", Hook: "xdp", Target: view.Target{Text: "eth0"}, State: "Attached",
			Position: 1, Of: 2, Runs: &runs, Verdicts: map[string]uint64{"Drop": 34, "Pass": 1200}}}}), sees("b", rejected), sees("c", rejected)}
	f.objects["/api/v1/namespaces/default/events"] = []any{
		map[string]any{"type": "Warning", "reason": "Failed", "message": "it fails on b", "count": 3, "lastTimestamp": "2026-11-30T12:00:00Z"},
		map[string]any{"type": "Normal", "reason": "Succeeded", "message": "it runs", "eventTime": "2026-11-30T11:00:00.000000Z"}}
	return f
}

const firewallExplained = `ClusterBpfApplication firewall
  image    r.example.com/firewall:v1
  digest   sha256:abababababababababababababababababababababababababababababababab
  signers  release
  Ready       False    90m   it fails on b, and 1 more
  Allowed     True     90m   allowed by baseline
`

// TestAnApplicationIsExplainedWithoutAccessToANode with the verifier's log, and the lines of C in it, once for all nodes.
func TestAnApplicationIsExplainedWithoutAccessToANode(t *testing.T) {
	want := firewallExplained + `
NODE  STATE   MESSAGE
a     Loaded  
b     Failed  the verifier rejects it
c     Failed  the verifier rejects it

NODE  PROGRAM    HOOK  TARGET  STATE     POSITION  RUNS  VERDICTS
a     drop_some  xdp   eth0    Attached  1 of 2    1234  Drop 34, Pass 1200

VERSION  AGO  RESULT    DIGEST     SIGNERS  CHANGES
2        90m  Failed    sha256:aa  release  variable sampling
1        30d  Deployed  sha256:bb  release  -

LAST SEEN             COUNT  TYPE     REASON     MESSAGE
2026-11-30T11:00:00Z  x1     Normal   Succeeded  it runs
2026-11-30T12:00:00Z  x3     Warning  Failed     it fails on b

error on b, c: load drop_some: the verifier rejects it

verifier log:
; return *data; @ drop.c:7
3: (61) r0 = *(u32 *)(r1 +0)
invalid access
`
	if diff := cmp.Diff(want, explained(t, onNodes(t).client(t, false), "firewall")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAnExplanationSaysWhatIsMissing and what brings it.
func TestAnExplanationSaysWhatIsMissing(t *testing.T) {
	f := onNodes(t)
	f.forbidden[of("bpfnodes")], f.forbidden["/api/v1/namespaces/default/events"] = true, true
	delete(f.objects, "/apis/view.skep.dev/v1alpha1/clusterbpfapplications/firewall/view")
	f.objects[of("clusterbpfapplications", "firewall")] = ready("", "firewall")
	_, got, _ := strings.Cut(explained(t, f.client(t, false), "cbpfapp/firewall"), "it runs\n")
	want := `
the states on nodes: unknown, it needs the right to list bpfnodes.skep.dev

attachments and the verifier's log: unknown: the cluster has no API view.skep.dev, by which nodes are asked: an admin installs the chart with view.enabled=true

events: unknown, it needs the right to list events in namespace default
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	f.forbidden["/apis/view.skep.dev/v1alpha1/clusterbpfapplications/firewall/view"] = true
	want = "it needs the right to get clusterbpfapplications.view.skep.dev/view firewall\n"
	if got := explained(t, f.client(t, false), "firewall"); !strings.Contains(got, want) {
		t.Errorf("it says:\n%s\nwant %q in it", got, want)
	}
}

// TestAnApplicationIsFoundAsOnAHost by its name alone where one namespace has it.
func TestAnApplicationIsFoundAsOnAHost(t *testing.T) {
	f := installed(t)
	f.objects[of("clusterbpfapplications", "firewall")] = ready("", "firewall")
	f.objects[of("namespaces", "team-a", "bpfapplications", "hello")] = denied("team-a", "hello")
	f.objects[of("bpfapplications")] = []any{denied("team-a", "hello")}
	for name, want := range map[string]string{"firewall": "firewall", "cbpfapp/firewall": "firewall", "clusterbpfapplications.skep.dev/firewall": "firewall",
		"team-a/hello": "team-a/hello", "bpfapp/hello": "team-a/hello", "hello": "team-a/hello"} {
		if a, err := f.client(t, false).Find(t.Context(), "explain", name); err != nil || a.Identity.String() != want {
			t.Errorf("%s is %s, %v, want %s", name, a.Identity, err, want)
		}
	}
	f.objects[of("bpfapplications")] = []any{denied("team-a", "hello"), ready("team-b", "hello")}
	for name, want := range map[string]string{
		"hello":      "explain hello: several applications have this name; choose one as NAMESPACE/NAME: team-a/hello, team-b/hello",
		"team-a/x":   "explain team-a/x: there is no such application; skep status lists all",
		"bpfapp/../": `"../" is the name of no object`,
	} {
		if _, err := f.client(t, false).Find(t.Context(), "explain", name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// TestANodeIsAskedByItsName and says why it does not answer.
func TestANodeIsAskedByItsName(t *testing.T) {
	f := installed(t)
	const path = "/apis/view.skep.dev/v1alpha1/nodeviews/a"
	f.objects[path] = view.NodeView{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Programs: []view.Program{{ID: 7, Type: "XDP"}}}
	n, err := f.client(t, false).Node(t.Context(), "a")
	if err != nil || n.Name != "a" || len(n.Programs) != 1 {
		t.Errorf("%v, %+v", err, n)
	}
	for what, c := range map[string]struct {
		change func()
		want   string
	}{
		"no right": {func() { f.forbidden[path] = true }, "cluster kind-a, context admin@a: you may not: it needs the right to get nodeviews.view.skep.dev a"},
		"no API":   {func() { f.forbidden[path] = false; delete(f.objects, path) }, "an admin installs the chart with view.enabled=true"},
		"no node":  {func() { f.objects["/apis/view.skep.dev/v1alpha1"] = map[string]any{} }, "get nodeviews.view.skep.dev a: "},
	} {
		t.Run(what, func(t *testing.T) {
			f.objects[path] = n
			f.forbidden[path] = false
			delete(f.objects, "/apis/view.skep.dev/v1alpha1")
			if c.change(); what == "no node" {
				delete(f.objects, path)
			}
			if _, err := f.client(t, false).Node(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestAnExplanationHasStableKeys(t *testing.T) {
	e, err := onNodes(t).client(t, false).Explain(t.Context(), "firewall", "")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var all map[string]any
	if err := PrintExplanation(&out, "json", e); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"denied", "events", "image", "kind", "name", "nodes", "status", "views"}, sorted(all)); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
}
