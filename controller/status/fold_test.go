package status

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/placement"
)

// says is a node that is well and says one thing of application "uid".
func says(name string, serial int64, state v1alpha1.NodeState, message string) Node {
	return Node{Name: name, Labels: map[string]string{"role": "edge"}, Ready: true, Reported: &v1alpha1.BpfNodeStatus{
		Kernel:       v1alpha1.KernelProfile{Release: "6.1.0", Hooks: []string{"xdp", "tracepoint"}, MapTypes: []string{"Hash"}},
		Applications: []v1alpha1.NodeApplication{{UID: "uid", Serial: serial, State: state, Message: message}},
	}}
}

// running is a node that runs a revision under serial 7.
func running(name, revision string) Node {
	n := says(name, 7, v1alpha1.NodeLoaded, "")
	n.Reported.Applications[0].Revision = revision
	return n
}

func TestNodesAreFolded(t *testing.T) {
	loaded := says("a", 7, v1alpha1.NodeLoaded, "")
	unprivileged := says("a", 7, v1alpha1.NodeFailed, "never tried")
	unprivileged.Reported.Kernel.Denied = []v1alpha1.DeniedHooks{{Hooks: []string{"uprobe", "uretprobe"}, Reason: "this process lacks CAP_SYS_ADMIN; grant it"}}
	away := says("b", 7, v1alpha1.NodeLoaded, "")
	away.Ready = false
	// short tells of what runs in short, and that something had no room.
	short := func(name string, untold int32, loaded ...string) Node {
		return Node{Name: name, Labels: map[string]string{"role": "edge"}, Ready: true, Reported: &v1alpha1.BpfNodeStatus{
			Counts: v1alpha1.NodeCounts{NotReported: untold}, Loaded: loaded}}
	}
	skips := func(name, what string) Node {
		n := says(name, 7, v1alpha1.NodeLoaded, "")
		n.Reported.Applications[0].Skipped = what
		return n
	}
	for name, c := range map[string]struct {
		wanted Wanted
		nodes  []Node
		want   v1alpha1.NodesStatus
		// reason is that of the condition Deployed, true whether it is.
		reason string
		deploy bool
	}{
		"all loaded": {Wanted{}, []Node{loaded, says("b", 7, v1alpha1.NodeLoaded, "")},
			v1alpha1.NodesStatus{Summary: "2/2", Selected: 2, Loaded: 2}, ReasonSucceeded, true},
		"one speaks of an older intent": {Wanted{}, []Node{loaded, says("b", 6, v1alpha1.NodeLoaded, "")},
			v1alpha1.NodesStatus{Summary: "1/2", Selected: 2, Loaded: 1, Pending: 1, FirstPending: "b"}, ReasonProgressing, false},
		"one speaks of an intent that was lost": {Wanted{}, []Node{loaded, says("b", 8, v1alpha1.NodeLoaded, "")},
			v1alpha1.NodesStatus{Summary: "1/2", Selected: 2, Loaded: 1, Pending: 1, FirstPending: "b"}, ReasonProgressing, false},
		"one runs another revision under the serial": {Wanted{Revision: "r2"}, []Node{running("a", "r2"), running("b", "r1")},
			v1alpha1.NodesStatus{Summary: "1/2", Selected: 2, Loaded: 1, Failed: 1, Failing: []v1alpha1.NodeFailure{{Node: "b", State: v1alpha1.NodeFailed,
				Message: "it runs revision r1, and under serial 7 revision r2 is sealed; change the application, which seals a newer serial"}}}, ReasonNodesFailed, false},
		"told in short, which has no room for a revision": {Wanted{Revision: "r2"}, []Node{short("a", 0, "uid:7")},
			v1alpha1.NodesStatus{Summary: "1/1", Selected: 1, Loaded: 1}, ReasonSucceeded, true},
		"one failed": {Wanted{}, []Node{says("b", 7, v1alpha1.NodeFailed, "R1 is scalar"), loaded},
			v1alpha1.NodesStatus{Summary: "1/2", Selected: 2, Loaded: 1, Failed: 1,
				Failing: []v1alpha1.NodeFailure{{Node: "b", State: v1alpha1.NodeFailed, Message: "R1 is scalar"}}}, ReasonNodesFailed, false},
		"one is away, and does not keep the others from being ready": {Wanted{}, []Node{loaded, away},
			v1alpha1.NodesStatus{Summary: "1/2", Selected: 2, Loaded: 1, Unreachable: 1, FirstUnreachable: "b"}, ReasonSucceeded, true},
		"all are away": {Wanted{}, []Node{away},
			v1alpha1.NodesStatus{Summary: "0/1", Selected: 1, Unreachable: 1, FirstUnreachable: "b"}, ReasonUnreachable, false},
		"no agent has spoken": {Wanted{}, []Node{{Name: "a", Ready: true}},
			v1alpha1.NodesStatus{Summary: "0/1", Selected: 1, Unreachable: 1, FirstUnreachable: "a"}, ReasonUnreachable, false},
		"told in short": {Wanted{}, []Node{short("a", 0, "other:9", "uid:7"), short("b", 3, "uid:7")},
			v1alpha1.NodesStatus{Summary: "2/2", Selected: 2, Loaded: 2}, ReasonSucceeded, true},
		"told in short of an older intent": {Wanted{}, []Node{loaded, short("b", 3, "uid:6")},
			v1alpha1.NodesStatus{Summary: "1/2", Selected: 2, Loaded: 1, Pending: 1, FirstPending: "b"}, ReasonProgressing, false},
		"not told by a report that told all": {Wanted{}, []Node{loaded, short("b", 0, "other:7")},
			v1alpha1.NodesStatus{Summary: "1/2", Selected: 2, Loaded: 1, Pending: 1, FirstPending: "b"}, ReasonProgressing, false},
		"one has no room to tell, and does not keep the others from being ready": {Wanted{}, []Node{loaded, short("b", 3, "other:7")},
			v1alpha1.NodesStatus{Summary: "1/2", Selected: 2, Loaded: 1, NotReported: 1}, ReasonSucceeded, true},
		"none has room to tell": {Wanted{}, []Node{short("b", 3, "other:7")},
			v1alpha1.NodesStatus{Summary: "0/1", Selected: 1, NotReported: 1}, ReasonNotReported, false},
		"no node is chosen": {Wanted{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "core"}}}, []Node{loaded},
			v1alpha1.NodesStatus{Summary: "0/0"}, ReasonNoNodes, true},
		"a hook that no kernel has": {Wanted{Needs: placement.Needs{Hooks: []string{"tcx/ingress"}}}, []Node{loaded},
			v1alpha1.NodesStatus{Summary: "0/1", Selected: 1, Unsupported: 1,
				Failing: []v1alpha1.NodeFailure{{Node: "a", State: v1alpha1.NodeUnsupported, Message: "kernel 6.1.0 has no hook tcx/ingress"}}}, ReasonUnsupported, false},
		"a hook that the agent has no right to": {Wanted{Needs: placement.Needs{Hooks: []string{"xdp", "uretprobe", "lsm"}}}, []Node{unprivileged},
			v1alpha1.NodesStatus{Summary: "0/1", Selected: 1, Unsupported: 1, Failing: []v1alpha1.NodeFailure{{Node: "a", State: v1alpha1.NodeUnsupported,
				Message: "kernel 6.1.0 has no hook lsm; the agent may not attach to hook uretprobe: this process lacks CAP_SYS_ADMIN; grant it"}}}, ReasonUnsupported,
			false},
		"a map type that no kernel has": {Wanted{Needs: placement.Needs{MapTypes: []string{"Hash", "Arena"}}}, []Node{loaded},
			v1alpha1.NodesStatus{Summary: "0/1", Selected: 1, Unsupported: 1,
				Failing: []v1alpha1.NodeFailure{{Node: "a", State: v1alpha1.NodeUnsupported, Message: "kernel 6.1.0 has no map type Arena"}}}, ReasonUnsupported, false},
		"a helper that kernels may lack, where it is not known to be loaded": {Wanted{
			Needs: placement.Needs{Helper: bytecode.Helper{Name: "bpf_new", MinKernel: "6.2"}},
		},
			[]Node{loaded, says("b", 5, v1alpha1.NodeLoaded, ""), says("c", 7, v1alpha1.NodeFailed, "no"), says("d", 7, v1alpha1.NodeUnsupported, "no")},
			v1alpha1.NodesStatus{Summary: "1/4", Selected: 4, Loaded: 1, Pending: 1, FirstPending: "b", Failed: 1, Unsupported: 1,
				KernelWarning: "b: kernel 6.1.0 may have no helper bpf_new, which came with Linux 6.2 (and 1 more)",
				Failing:       []v1alpha1.NodeFailure{{Node: "c", State: v1alpha1.NodeFailed, Message: "no"}, {Node: "d", State: v1alpha1.NodeUnsupported, Message: "no"}}},
			ReasonNodesFailed, false},
		"a helper that kernels may lack, and is loaded all the " +
			"same": {Wanted{Needs: placement.Needs{Helper: bytecode.Helper{Name: "bpf_new", MinKernel: "6.2"}}}, []Node{loaded},
			v1alpha1.NodesStatus{Summary: "1/1", Selected: 1, Loaded: 1}, ReasonSucceeded, true},
		"held by the rollout, at a version that runs": {Wanted{Reaches: func(node string) bool { return node == "a" }}, []Node{
			loaded, says("b", 5, v1alpha1.NodeLoaded, ""), says("c", 5, v1alpha1.NodePending, ""),
		},
			v1alpha1.NodesStatus{Summary: "1/3", Selected: 3, Loaded: 1, Retained: 2}, ReasonProgressing, false},
		"held by the rollout, at a version that fails": {Wanted{Reaches: func(node string) bool { return node == "a" }},
			[]Node{loaded, says("b", 5, v1alpha1.NodeFailed, "no")},
			v1alpha1.NodesStatus{Summary: "1/2", Selected: 2, Loaded: 1, Failed: 1,
				Failing: []v1alpha1.NodeFailure{{Node: "b", State: v1alpha1.NodeFailed, Message: "the version before: no"}}}, ReasonNodesFailed, false},
		"ahead of an intent that the API server lost " +
			"since": {Wanted{Reaches: func(string) bool { return false }}, []Node{loaded, says("b", 9, v1alpha1.NodeLoaded, "")},
			v1alpha1.NodesStatus{Summary: "0/2", Selected: 2, Retained: 1, Pending: 1, FirstPending: "b"}, ReasonProgressing, false},
		"waiting for a target": {Wanted{}, []Node{loaded, says("b", 7, v1alpha1.NodeWaiting, "no interface"), says("c", 7, v1alpha1.NodeWaiting, "none here")},
			v1alpha1.NodesStatus{Summary: "1/3", Selected: 3, Loaded: 1, Pending: 2, Waiting: "b: no interface (and 1 more)"}, ReasonProgressing, false},
		"one runs it without what is left to it": {Wanted{}, []Node{loaded, skips("b", "no fentry"), skips("c", "no kprobe")},
			v1alpha1.NodesStatus{Summary: "3/3", Selected: 3, Loaded: 3, Skipped: "b: no fentry (and 1 more)"}, ReasonSucceeded, true},
		"one runs it and says more than that": {Wanted{}, []Node{loaded, says("b", 7, v1alpha1.NodeLoaded, "application a, which had map m, is gone")},
			v1alpha1.NodesStatus{Summary: "2/2", Selected: 2, Loaded: 2, Notice: "b: application a, which had map m, is gone"}, ReasonSucceeded, true},
		"a label not seen yet": {Wanted{}, []Node{says("a", 7, v1alpha1.NodeNotSelected, "")},
			v1alpha1.NodesStatus{Summary: "0/1", Selected: 1, Pending: 1, FirstPending: "a"}, ReasonProgressing, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.wanted.UID, c.wanted.Serial = "uid", 7
			got, err := Fold(c.wanted, c.nodes)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("Fold (-want +got):\n%s", diff)
			}
			if d := Deployed(got); d.Reason != c.reason || (d.Status == metav1.ConditionTrue) != c.deploy || d.Message == "" ||
				!strings.Contains(d.Message, got.KernelWarning) || !strings.Contains(d.Message, got.Skipped) || !strings.Contains(d.Message, got.Notice) {
				t.Errorf("Deployed = %+v", d)
			}
		})
	}
}

func TestTheFirstNodeOfWhichNothingIsSaidIsNamed(t *testing.T) {
	away := func(name string) Node { return Node{Name: name} }
	for sentence, c := range map[string]struct {
		nodes []Node
		want  string
	}{
		"one each, in whatever order": {[]Node{away("d"), says("c", 7, v1alpha1.NodePending, "being fetched"), says("a", 7, v1alpha1.NodeLoaded, "")},
			"loaded on 1 of 3 nodes, 1 pending (c), 1 unreachable (d)"},
		"the others are counted": {[]Node{away("f"), away("e"), away("d"), says("c", 6, v1alpha1.NodeLoaded, ""), says("b", 7, v1alpha1.NodePending, "")},
			"loaded on 0 of 5 nodes, 2 pending (b and 1 more), 3 unreachable (d and 2 more)"},
		"what a node waits for is told of it anyway": {[]Node{says("a", 7, v1alpha1.NodeWaiting, "no interface"), says("b", 7, v1alpha1.NodePending, "")},
			"loaded on 0 of 2 nodes, 2 pending (b and 1 more); a: no interface"},
		"all wait for something": {[]Node{says("a", 7, v1alpha1.NodeWaiting, "no interface"), says("b", 7, v1alpha1.NodeWaiting, "none")},
			"loaded on 0 of 2 nodes, 2 pending; a: no interface (and 1 more)"},
	} {
		t.Run(sentence, func(t *testing.T) {
			for range 2 {
				got, err := Fold(Wanted{UID: "uid", Serial: 7}, c.nodes)
				if err != nil {
					t.Fatal(err)
				}
				if said := Deployed(got).Message; said != c.want {
					t.Errorf("it says %q, want %q", said, c.want)
				}
				slices.Reverse(c.nodes)
			}
		})
	}
}

// TestNoTextOfANodeBeginsALine of a status, where kubectl describe would print it like a field or an event.
func TestNoTextOfANodeBeginsALine(t *testing.T) {
	const evil = "no\nEvents:\n\tNormal  Succeeded"
	var nodes []Node
	for i, state := range []v1alpha1.NodeState{v1alpha1.NodeFailed, v1alpha1.NodeWaiting, v1alpha1.NodeLoaded, v1alpha1.NodePending, v1alpha1.NodeUnsupported} {
		n := says(string(rune('a'+i)), 7, state, evil)
		n.Reported.Applications[0].Skipped, n.Reported.Applications[0].Revision, n.Reported.Kernel.Release = evil, evil, "6.9"+evil
		nodes = append(nodes, n)
	}
	for _, w := range []Wanted{{UID: "uid", Serial: 7}, {UID: "uid", Serial: 7, Revision: "r"}} {
		folded, err := Fold(w, nodes)
		unloaded, _ := Unloaded("uid", 9, nodes, time.UnixMilli(9))
		for _, all := range []any{folded, Deployed(folded), unloaded} {
			written, _ := json.Marshal(all) // It is of texts and numbers.
			if text := string(written); err != nil || strings.Contains(text, `\n`) || strings.Contains(text, `\t`) || !strings.Contains(text, "Events:") {
				t.Errorf("%v %s", err, text)
			}
		}
	}
}

func TestFailingNodesAreBounded(t *testing.T) {
	var nodes []Node
	for i := range 50 {
		nodes = append(nodes, says(string(rune('A'+i)), 7, v1alpha1.NodeFailed, "no"))
	}
	got, err := Fold(Wanted{UID: "uid", Serial: 7}, nodes)
	if err != nil || got.Failed != 50 || len(got.Failing) != v1alpha1.MaxFailingNodes || got.Failing[0].Node != "A" {
		t.Errorf("%d failed, %d named, %v", got.Failed, len(got.Failing), err)
	}
}

func TestASelectorThatCannotBeReadIsAnError(t *testing.T) {
	bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Maybe"}}}
	if _, err := Fold(Wanted{Selector: bad}, nil); err == nil {
		t.Error("a selector that cannot be read chose nodes")
	}
}
