package status

import (
	"testing"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestWhatIsUnloadedIsCountedByWhatNodesSay is about a tombstone of serial 9.
func TestWhatIsUnloadedIsCountedByWhatNodesSay(t *testing.T) {
	of := func(serial int64, state v1alpha1.NodeState, revision string) Node {
		n := says("one", serial, state, "")
		n.Reported.Applications[0].Revision = revision
		return n
	}
	away := of(7, v1alpha1.NodeLoaded, "r1")
	noRoom := Node{Name: "one", Ready: true, Reported: &v1alpha1.BpfNodeStatus{Counts: v1alpha1.NodeCounts{NotReported: 3}}}
	away.Ready = false
	short := Node{Name: "one", Ready: true, Reported: &v1alpha1.BpfNodeStatus{Loaded: []string{"uid:7"}}}
	const none, unloading, unreached = "nothing is deployed", "it is to be unloaded; nodes: ", "no node that answers runs it; nodes: "
	for sentence, c := range map[string]struct {
		node            Node
		reason, message string
	}{
		"it unloaded it":                              {of(9, v1alpha1.NodeRemoved, ""), ReasonNotDeployed, none},
		"a newer tombstone came":                      {of(12, v1alpha1.NodeRemoved, ""), ReasonNotDeployed, none},
		"it never reported":                           {Node{Name: "one", Ready: true}, ReasonNotDeployed, none},
		"it reports all, and not this":                {Node{Name: "one", Ready: true, Reported: &v1alpha1.BpfNodeStatus{}}, ReasonNotDeployed, none},
		"it runs it":                                  {of(7, v1alpha1.NodeLoaded, "r1"), ReasonUnloading, unloading + "1 still running it (one)"},
		"it runs it, and says so in short":            {short, ReasonUnloading, unloading + "1 still running it (one)"},
		"it cannot unload it":                         {of(9, v1alpha1.NodeFailed, "r1"), ReasonUnloading, unloading + "1 still running it (one)"},
		"its kernel closes links":                     {of(9, v1alpha1.NodePending, ""), ReasonUnloading, unloading + "1 that did not answer yet (one)"},
		"an older tombstone acted, and nothing since": {of(5, v1alpha1.NodeRemoved, ""), ReasonUnloading, unloading + "1 that did not answer yet (one)"},
		"it began to load a version before":           {of(7, v1alpha1.NodePending, ""), ReasonUnloading, unloading + "1 that did not answer yet (one)"},
		"it could not load the version before":        {of(7, v1alpha1.NodeFailed, ""), ReasonUnloading, unloading + "1 that did not answer yet (one)"},
		"it ran it, and is away":                      {away, ReasonNotDeployed, unreached + "1 that may run it, and cannot be reached (one)"},
		"it has no room":                              {noRoom, ReasonNotDeployed, unreached + "1 with no room to tell of it (one)"},
	} {
		got, more := Unloaded("uid", 9, []Node{c.node}, time.UnixMilli(9).Add(AnswersWithin))
		if more != 0 || got.Reason != c.reason || got.Message != c.message {
			t.Errorf("%s: %s: %s, want %s: %s", sentence, got.Reason, got.Message, c.reason, c.message)
		}
	}
}

// TestWhatSaysNothingIsWaitedForAMoment is about nodes that may have begun to run what a tombstone ends, and did not say so yet.
func TestWhatSaysNothingIsWaitedForAMoment(t *testing.T) {
	says := Node{Name: "one", Ready: true, Reported: &v1alpha1.BpfNodeStatus{}}
	away := says
	away.Ready = false
	for sentence, c := range map[string]struct {
		node   Node
		age    time.Duration
		silent time.Duration
	}{
		"it is new":                     {says, time.Second, AnswersWithin - time.Second},
		"its agent never said anything": {Node{Name: "one", Ready: true}, 0, AnswersWithin},
		"it is old":                     {says, AnswersWithin, 0},
		"a clock was ahead":             {says, -time.Second, AnswersWithin + time.Second},
		"a clock was far ahead":         {says, -time.Hour, 0},
		"the node is away":              {away, 0, 0},
	} {
		got, silent := Unloaded("uid", 9000, []Node{c.node}, time.UnixMilli(9000).Add(c.age))
		if silent != c.silent || (got.Reason == ReasonUnloading) != (c.silent > 0) {
			t.Errorf("%s: waits for %s: %s: %s", sentence, silent, got.Reason, got.Message)
		}
	}
}
