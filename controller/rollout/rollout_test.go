package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/intent"
)

// steps is a spec of steps as YAML has them, with a pause in seconds.
func steps(pause int, all ...string) *v1alpha1.Rollout {
	r := &v1alpha1.Rollout{Pause: &metav1.Duration{Duration: time.Duration(pause) * time.Second}}
	for _, s := range all {
		r.Steps = append(r.Steps, intstr.Parse(s))
	}
	return r
}

// in is a number of reachable nodes in the order in which versions come to them,
// each in the state that stands at its place; a missing or empty one has not
// answered.
func in(n int, states ...v1alpha1.NodeState) []status.Answer {
	var all []status.Answer
	for i := range n {
		all = append(all, status.Answer{Node: fmt.Sprintf("node-%d", i), Reachable: true, State: v1alpha1.NodePending})
	}
	slices.SortFunc(all, func(a, b status.Answer) int {
		return strings.Compare(intent.NodeHash("uid", a.Node), intent.NodeHash("uid", b.Node))
	})
	for i, s := range states {
		switch s {
		case "":
		case away:
			all[i].Reachable = false
		case left:
			all[i].Reachable, all[i].Gone = false, new(sealed.Add(time.Second))
		case tried:
			all[i].State, all[i].Message, all[i].Tried = unsupported, "words of the kernel", true
		case before:
			all[i].Reachable, all[i].Gone = false, new(sealed.Add(-time.Second))
		case second:
			all[i].Reachable, all[i].Gone = false, new(sealed.Truncate(time.Second))
		default:
			all[i].State, all[i].Message = s, "words of the kernel"
		}
	}
	return all
}

// away is a node that cannot be reached and never spoke, left one that went away
// after the version was sealed, before one that did so before, and second one in the
// same second, as Kubernetes writes times; tried one that found its kernel unfit.
const (
	tried  v1alpha1.NodeState = "tried"
	away   v1alpha1.NodeState = "away"
	left   v1alpha1.NodeState = "left"
	before v1alpha1.NodeState = "before"
	second v1alpha1.NodeState = "second"
)

// sealed is when the version was.
var sealed = time.UnixMilli(1_700_000_000_400)

// said is a rollout as the step and how many nodes it reaches; none is every
// node.
func said(r *intent.Rollout, nodes []status.Answer) string {
	if r == nil {
		return "all"
	}
	n := 0
	for _, a := range nodes {
		if intent.NodeHash("uid", a.Node) <= r.Through {
			n++
		}
	}
	return fmt.Sprintf("step %d to %d", r.Step, n)
}

const (
	loaded      = v1alpha1.NodeLoaded
	failed      = v1alpha1.NodeFailed
	waiting     = v1alpha1.NodeWaiting
	unsupported = v1alpha1.NodeUnsupported
)

func TestAVersionStarts(t *testing.T) {
	for sentence, c := range map[string]struct {
		spec  *v1alpha1.Rollout
		nodes []status.Answer
		want  string
	}{
		"on one node where nothing is said":          {nil, in(5), "step 1 to 1"},
		"on the first step's nodes":                  {steps(0, "2", "50%"), in(5), "step 1 to 2"},
		"on a share, rounded up":                     {steps(0, "30%"), in(5), "step 1 to 2"},
		"everywhere where there is one node":         {nil, in(1), "all"},
		"everywhere where there is none":             {nil, nil, "all"},
		"everywhere where the first step is all":     {steps(0, "100%"), in(5), "all"},
		"nowhere while no node can be reached":       {nil, in(2, away, away), "step 1 to 0"},
		"on the first node that can be reached":      {nil, in(3, away), "step 1 to 2"},
		"everywhere where one kernel alone can":      {nil, in(3, unsupported, unsupported), "all"},
		"past a node whose kernel cannot":            {nil, in(3, unsupported), "step 1 to 2"},
		"a share counts those that are away as well": {steps(0, "50%"), in(4, away, away), "step 1 to 4"},
	} {
		t.Run(sentence, func(t *testing.T) {
			if got := said(Of(c.spec, "uid", c.nodes).Start("", false, sealed), c.nodes); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
	nodes := in(5)
	through := intent.NodeHash("uid", nodes[2].Node)
	if got := said(Of(nil, "uid", nodes).Start(through, false, sealed), nodes); got != "step 1 to 3" {
		t.Errorf("a version that takes the place of another comes to %s, want step 1 to 3", got)
	}
}

func TestARolloutMovesOn(t *testing.T) {
	for sentence, c := range map[string]struct {
		spec  *v1alpha1.Rollout
		nodes []status.Answer
		// step and reached are what is sealed, age its seconds.
		step, reached, age int
		resumed            bool
		// next is where it moves to; else state and a part of the message.
		next    string
		state   v1alpha1.RolloutState
		message string
	}{
		"not before the node has answered":             {nil, in(3), 1, 1, 9, false, "", v1alpha1.RolloutProgressing, "step 1 of 2: 0 of 1 nodes"},
		"to all once the node runs it":                 {nil, in(3, loaded), 1, 1, 0, false, "all", "", ""},
		"to the next step":                             {steps(0, "1", "50%"), in(6, loaded), 1, 1, 0, false, "step 2 to 3", "", ""},
		"past a step that comes no further":            {steps(0, "1", "10%", "50%"), in(6, loaded), 1, 1, 0, false, "step 3 to 3", "", ""},
		"not while one of the step has yet to answer":  {steps(0, "2"), in(6, loaded), 1, 2, 0, false, "", v1alpha1.RolloutProgressing, "1 of 2 nodes"},
		"not after a failure":                          {nil, in(3, failed), 1, 1, 99, false, "", v1alpha1.RolloutStopped, "node-"},
		"not after a failure beside a success":         {steps(0, "2"), in(6, loaded, failed), 1, 2, 99, false, "", v1alpha1.RolloutStopped, "words of the kernel"},
		"though a node it has not come to fails":       {nil, in(3, loaded, failed), 1, 1, 0, false, "all", "", ""},
		"past a failure that somebody resumes":         {nil, in(3, failed), 1, 1, 0, true, "all", "", ""},
		"not before the pause is over":                 {steps(60, "1"), in(3, loaded), 1, 1, 59, false, "", v1alpha1.RolloutPaused, "the next one begins 1m0s"},
		"once the pause is over":                       {steps(60, "1"), in(3, loaded), 1, 1, 60, false, "all", "", ""},
		"within the pause that somebody resumes":       {steps(60, "1"), in(3, loaded), 1, 1, 0, true, "all", "", ""},
		"to another node where the first went away":    {nil, in(3, away), 1, 1, 0, false, "step 1 to 2", "", ""},
		"to another node where the first has no place": {nil, in(3, waiting), 1, 1, 0, false, "step 1 to 2", "", ""},
		"to all where no node has a place for it":      {nil, in(2, waiting, waiting), 1, 2, 0, false, "all", "", ""},
		"not while no node can be reached":             {nil, in(2, away, away), 1, 1, 0, false, "", v1alpha1.RolloutProgressing, "no node of it is reachable"},
		"to a node that came back":                     {nil, in(2), 1, 0, 0, false, "step 1 to 1", "", ""},
		"to all where the step is no longer defined":   {nil, in(6, loaded, loaded, loaded), 2, 3, 0, false, "all", "", ""},
		"no further where it is not, and one failed":   {nil, in(6, loaded, failed, loaded), 2, 3, 0, false, "", v1alpha1.RolloutStopped, "words of the kernel"},
		"no further where it is not, and one is away":  {nil, in(6, loaded, loaded, ""), 2, 3, 0, false, "", v1alpha1.RolloutProgressing, "2 of 3"},
		"not where a node went away with the version":  {nil, in(3, left), 1, 1, 99, false, "", v1alpha1.RolloutProgressing, "went away since"},
		"to two where none of two has a place":         {nil, in(9, waiting, waiting), 1, 2, 0, false, "step 1 to 4", "", ""},
		"to four where none of four has one":           {nil, in(9, waiting, waiting, waiting, waiting), 1, 4, 0, false, "step 1 to 8", "", ""},
		"no further where one of them has one":         {nil, in(9, waiting, waiting, loaded), 1, 3, 0, false, "all", "", ""},
		"past a kernel that turned out to be unfit":    {nil, in(3, tried), 1, 1, 0, false, "step 1 to 2", "", ""},
		"not where every kernel turned out to be":      {nil, in(2, tried, tried), 1, 2, 0, false, "", v1alpha1.RolloutStopped, "words of the kernel"},
		"by the steps that are defined now":            {steps(0, "1", "50%"), in(10, loaded, loaded, loaded), 3, 3, 0, false, "step 2 to 5", "", ""},
		"not before a pause that a wrong clock began":  {steps(60, "1"), in(3, loaded), 1, 1, -9, false, "step 1 to 1", "", ""},
		"not where a node went away in that second":    {nil, in(3, second), 1, 1, 99, false, "", v1alpha1.RolloutProgressing, "went away since"},
		"by its steps though all others are away": {
			steps(0, "1", "20%", "50%"), in(10, loaded, away, away, away, away, away, away, away, away, away), 1, 1, 0, false, "step 2 to 2", "", "",
		},
		"though a step is more nodes than there are": {steps(0, "1", "20"), in(3, loaded, away, away), 2, 1, 0, false, "step 2 to 3", "", ""},
		"by each of them": {
			steps(0, "1", "20%", "50%"), in(10, loaded, away, away, away, away, away, away, away, away, away), 2, 2, 0, false, "step 3 to 5", "", "",
		},
		"past a node that went away before": {nil, in(3, before), 1, 1, 0, false, "step 1 to 2", "", ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			fleet := Of(c.spec, "uid", c.nodes)
			got := fleet.Look(live(c.step, c.reached, c.nodes), sealed.Add(time.Duration(c.age)*time.Second), c.resumed)
			if got.Moves != (c.next != "") || got.Moves && said(got.Next, c.nodes) != c.next {
				t.Fatalf("moves %v to %s, want %q", got.Moves, said(got.Next, c.nodes), c.next)
			}
			if got.Moves {
				return
			}
			if got.Status.State != c.state || !strings.Contains(got.Status.Message, c.message) || int(got.Status.Nodes) != c.reached {
				t.Errorf("%+v, want %s, %q, %d nodes", got.Status, c.state, c.message, c.reached)
			}
			if paused := c.state == v1alpha1.RolloutPaused; paused != (got.After > 0) {
				t.Errorf("looks again after %s", got.After)
			}
		})
	}
}

// live is an intent whose step has come to so many nodes.
func live(step, reached int, nodes []status.Answer) intent.Payload {
	p := intent.Payload{Serial: sealed.UnixMilli(), Rollout: &intent.Rollout{Step: step, Since: sealed.UnixMilli()}}
	if reached > 0 {
		p.Rollout.Through = intent.NodeHash("uid", nodes[reached-1].Node)
	}
	return p
}

func TestAStopSaysWhatTheOtherNodesRun(t *testing.T) {
	nodes := in(3, failed)
	first := live(1, 1, nodes)
	second := first
	second.Previous = &intent.Payload{UID: "uid"}
	for want, p := range map[string]intent.Payload{
		"run nothing of it. Change the definition, or see skep rollout resume":                first,
		"keep the version before. Change the definition, or see skep rollout resume and undo": second,
	} {
		if got := Of(nil, "uid", nodes).Look(p, sealed, false).Status.Message; !strings.HasSuffix(got, "the other nodes "+want) {
			t.Errorf("%q, want the end %q", got, want)
		}
	}
}

func TestAVersionThatChoosesNoNodeUnloadsNothingByItself(t *testing.T) {
	none := Of(nil, "uid", nil)
	start := none.Start("", true, sealed)
	if start == nil || start.Through != "" {
		t.Fatalf("it begins with %+v", start)
	}
	p := intent.Payload{Serial: 1, Rollout: start, Previous: &intent.Payload{UID: "uid"}}
	if got := none.Look(p, sealed.Add(time.Hour), false); got.Moves || got.Status.State != v1alpha1.RolloutNoMatchingNodes ||
		!strings.Contains(got.Status.Message, "chooses no node") {
		t.Errorf("%+v", got)
	}
	if got := none.Look(p, sealed, true); !got.Moves || got.Next != nil {
		t.Errorf("resumed, it moves %v to %+v", got.Moves, got.Next)
	}
	unfit := Of(nil, "uid", in(3, unsupported, unsupported, unsupported))
	if got := unfit.Look(p, sealed, false); got.Moves || got.Status.State != v1alpha1.RolloutNoMatchingNodes ||
		!strings.Contains(got.Status.Message, "chooses 3 nodes, and the kernel of none") {
		t.Errorf("of nodes whose kernels cannot hold it: %+v", got)
	}
	if got := Of(nil, "uid", in(3)).Look(p, sealed, false); !got.Moves || said(got.Next, in(3)) != "step 1 to 1" {
		t.Errorf("once there are nodes, it moves %v to %+v", got.Moves, got.Next)
	}
}

func TestTheOrderOfNodesIsTheApplicationsOwn(t *testing.T) {
	first := map[string]int{}
	for i := range 200 {
		uid := fmt.Sprint(i)
		var nodes []status.Answer
		for n := range 4 {
			nodes = append(nodes, status.Answer{Node: fmt.Sprintf("node-%d", n), Reachable: true})
		}
		start := Of(nil, uid, nodes).Start("", false, sealed)
		for _, n := range nodes {
			if intent.NodeHash(uid, n.Node) <= start.Through {
				first[n.Node]++
			}
		}
	}
	for node, n := range first {
		if n < 20 || n > 100 {
			t.Errorf("%s goes first for %d of 200 applications: %v", node, n, first)
		}
	}
}

func TestANodeThatWentBeforeItsStepIsNotWaitedFor(t *testing.T) {
	nodes := in(6, loaded, left, loaded)
	fleet, p := Of(steps(0, "1", "50%"), "uid", nodes), live(2, 3, nodes)
	for after, moves := range map[time.Duration]bool{0: false, 2 * time.Second: true} {
		p.Rollout.Since = sealed.Add(after).UnixMilli()
		if got := fleet.Look(p, sealed.Add(time.Minute), false); got.Moves != moves {
			t.Errorf("a step from %s on moves: %v; %+v", after, got.Moves, got.Status)
		}
	}
}
