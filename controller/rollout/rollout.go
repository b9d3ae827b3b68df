// Package rollout says how far a version of an application is to have come.
//
// It is pure: it takes what is defined, what is sealed and what the nodes
// answer, and returns the next step. All there is to remember of a rollout
// stands in the sealed intent, so any replica goes on where another stopped.
package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/intent"
)

// Fleet is the selected nodes in the order in which versions come to them, and
// the steps of it.
type Fleet struct {
	steps []intstr.IntOrString
	pause time.Duration
	nodes []node
	// chosen counts the nodes that the selector chooses, selected those of them that
	// the steps are shares of.
	chosen, selected int
}

// node is a selected node that could hold the application.
type node struct {
	status.Answer
	hash string
}

// able reports whether the node can show how a version does: it is there, every
// target of the application too, and it did not find that its kernel lacks
// something.
func (n node) able() bool {
	return n.Reachable && n.State != v1alpha1.NodeWaiting && n.State != v1alpha1.NodeUnsupported
}

// Of orders what the nodes answer of one application. A nil spec means one node
// first. Nodes whose profile says that they cannot hold the application take no
// part.
func Of(spec *v1alpha1.Rollout, uid string, answers []status.Answer) Fleet {
	f := Fleet{steps: []intstr.IntOrString{intstr.FromInt32(1)}, chosen: len(answers)}
	if spec != nil && len(spec.Steps) > 0 {
		f.steps = spec.Steps
	}
	if spec != nil && spec.Pause != nil {
		f.pause = spec.Pause.Duration
	}
	for _, a := range answers {
		if a.State != v1alpha1.NodeUnsupported || a.Tried {
			f.nodes = append(f.nodes, node{a, intent.NodeHash(uid, a.Node)})
		}
	}
	f.selected = len(f.nodes)
	slices.SortFunc(f.nodes, func(a, b node) int { return strings.Compare(a.hash, b.hash) })
	return f
}

// Start is the first step of a version that comes at least as far as through;
// nil where the first step is every node. A version that chooses no node is held
// back where another one runs: it would be unloaded everywhere.
func (f Fleet) Start(through string, runs bool, now time.Time) *intent.Rollout {
	if f.size(1) >= f.selected && (f.selected > 0 || !runs) {
		return nil
	}
	return &intent.Rollout{Step: 1, Through: max(through, f.through(f.size(1))), Since: now.UnixMilli()}
}

// Empty says why a version comes to no node, where something runs that it would
// take the place of; empty where it comes to some.
func (f Fleet) Empty() string {
	switch {
	case f.selected > 0:
		return ""
	case f.chosen > 0:
		return fmt.Sprintf("it chooses %d nodes, and the kernel of none of them can hold it", f.chosen)
	}
	return "it chooses no node, and what runs would be unloaded everywhere"
}

// HeldBack is what is told of a version that is not sealed, or goes no further,
// for that.
func HeldBack(why string) string {
	return "the version is held back: " + why + "; change the definition, or have it so by skep rollout resume"
}

// size is how many nodes a step is; all of them after the last step.
func (f Fleet) size(step int) int {
	if step > len(f.steps) {
		return f.selected
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&f.steps[step-1], f.selected, true)
	if err != nil || n < 1 {
		// The API takes neither; one node is the most careful reading.
		return 1
	}
	return n
}

// last is the number of the step that comes to all, which is one more than are
// written unless the last of those is all.
func (f Fleet) last() int {
	if f.size(len(f.steps)) >= f.selected {
		return len(f.steps)
	}
	return len(f.steps) + 1
}

// through is the hash of the n-th able node. Where fewer than n are able, it is that of
// the n-th node that is able or away, but no less than that of the first able one: who
// is away has the version when it is back, and the step has no more than its share. It
// is empty where no node is able.
func (f Fleet) through(n int) string {
	var able, some []string
	for _, one := range f.nodes {
		if one.able() {
			able = append(able, one.hash)
		}
		if one.able() || !one.Reachable {
			some = append(some, one.hash)
		}
	}
	switch {
	case len(able) == 0:
		return ""
	case n <= len(able):
		return able[n-1]
	}
	return max(able[0], some[min(n, len(some))-1])
}

// Progress is how a rollout stands, and what is to be sealed next.
type Progress struct {
	// Moves tells that Next is to be sealed; a nil Next is every node.
	Moves bool
	Next  *intent.Rollout
	// After is when to look again though no node says anything new; zero means
	// never.
	After time.Duration
	// Status is what to tell of the step.
	Status v1alpha1.RolloutStatus
}

// Look says how the rollout of an intent does. resumed has the step count as done,
// whatever its nodes say.
func (f Fleet) Look(live intent.Payload, now time.Time, resumed bool) Progress {
	at := *live.Rollout
	reached := f.reached(at)
	last := max(at.Step, f.last())
	p := Progress{Status: v1alpha1.RolloutStatus{
		State: v1alpha1.RolloutProgressing, Step: int32(at.Step), Steps: int32(last), Nodes: int32(reached.nodes),
	}}
	step := fmt.Sprintf("step %d of %d", at.Step, last)
	wider, age := f.wider(at, reached), now.Sub(time.UnixMilli(at.Since))
	p.Status.Message = step + " is done"
	switch {
	case resumed:
		p.Moves, p.Next = true, f.after(at, now)
	case f.Empty() != "" && live.Previous != nil:
		p.Status.State, p.Status.Message = v1alpha1.RolloutNoMatchingNodes, HeldBack(f.Empty())
	case reached.failed != nil:
		p.Status.State = v1alpha1.RolloutStopped
		p.Status.Message = fmt.Sprintf("stopped at %s: %s: %s; %s", step, reached.failed.Node, reached.failed.Message, fix(live))
	case reached.left != nil:
		p.Status.Message = fmt.Sprintf("%s: %s went away since it is to have the version, and is waited for; see skep rollout resume", step, reached.left.Node)
	case reached.pending > 0:
		p.Status.Message = fmt.Sprintf("%s: %d of %d nodes have the version", step, reached.loaded, reached.nodes)
	case wider > at.Through:
		p.Moves, p.Next = true, &intent.Rollout{Step: at.Step, Through: wider, Since: now.UnixMilli()}
	case reached.loaded+reached.waiting == 0 && reached.unfit != nil:
		p.Status.State = v1alpha1.RolloutStopped
		p.Status.Message = fmt.Sprintf("stopped at %s: %s: %s; %s", step, reached.unfit.Node, reached.unfit.Message, fix(live))
	case reached.loaded+reached.waiting == 0:
		p.Status.Message = step + ": no node of it is reachable"
	case age < 0 && f.pause > 0:
		// Sealed by a clock that was ahead: the pause begins now.
		p.Moves, p.Next = true, &intent.Rollout{Step: at.Step, Through: at.Through, Since: now.UnixMilli()}
	case age < f.pause:
		p.After = f.pause - age
		p.Status.State = v1alpha1.RolloutPaused
		p.Status.Message = fmt.Sprintf("%s is done on %d nodes; the next one begins %s after it", step, reached.loaded, f.pause)
	default:
		p.Moves, p.Next = true, f.after(at, now)
	}
	return p
}

// wider is how far a step goes while some of the nodes that it has come to cannot
// show how the version does: on to as many others, so that a version for which no
// node is fit is known for that after few writes.
func (f Fleet) wider(at intent.Rollout, reached reach) string {
	if at.Step > len(f.steps) {
		return at.Through
	}
	size := f.size(at.Step)
	if reached.loaded == 0 {
		size = max(size, reached.waiting+reached.unfits)
	}
	return f.through(size)
}

// fix says what runs where a version has not come to that failed, and what
// can be done about it.
func fix(live intent.Payload) string {
	if live.Previous == nil {
		return "the other nodes run nothing of it. Change the definition, or see skep rollout resume"
	}
	return "the other nodes keep the version before. Change the definition, or see skep rollout resume and undo"
}

// reach counts what a step has come to.
type reach struct {
	nodes, loaded, pending, waiting, unfits int
	// failed is the first that failed, unfit one that found that its kernel lacks
	// something, left one that went away since the version came this far, in whole
	// seconds as Kubernetes writes them: perhaps because of it. One that had it and
	// went earlier has kept the step before from being done.
	failed, unfit, left *node
}

func (f Fleet) reached(at intent.Rollout) reach {
	var r reach
	since := time.UnixMilli(at.Since).Truncate(time.Second)
	for i, n := range f.nodes {
		if n.hash > at.Through {
			break
		}
		r.nodes++
		switch {
		case !n.Reachable && n.Gone != nil && !n.Gone.Before(since):
			r.left = &f.nodes[i]
		case !n.Reachable:
		case n.State == v1alpha1.NodeLoaded:
			r.loaded++
		case n.State == v1alpha1.NodeWaiting:
			r.waiting++
		case n.State == v1alpha1.NodeUnsupported:
			r.unfits++
			r.unfit = &f.nodes[i]
		case n.State == v1alpha1.NodeFailed && r.failed == nil:
			r.failed = &f.nodes[i]
		default:
			r.pending++
		}
	}
	return r
}

// after is the first step that comes further than this one, which may be of a
// spec that was changed since; nil where that is every node.
func (f Fleet) after(at intent.Rollout, now time.Time) *intent.Rollout {
	for step := 1; step <= len(f.steps); step++ {
		size := f.size(step)
		if size >= f.selected {
			return nil
		}
		if wider := f.through(size); wider > at.Through {
			return &intent.Rollout{Step: step, Through: wider, Since: now.UnixMilli()}
		}
	}
	return nil
}
