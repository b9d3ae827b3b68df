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
	// selected counts every node that the steps are shares of.
	selected int
}

// node is a selected node that could hold the application.
type node struct {
	status.Answer
	hash string
}

// able tells whether the node can show how a version does: it is there, and
// every target of the application too.
func (n node) able() bool { return n.Reachable && n.State != v1alpha1.NodeWaiting }

// Of orders what the nodes answer of one application. A nil spec means one node
// first. Nodes whose kernel cannot hold the application take no part.
func Of(spec *v1alpha1.Rollout, uid string, answers []status.Answer) Fleet {
	f := Fleet{steps: []intstr.IntOrString{intstr.FromInt32(1)}}
	if spec != nil && len(spec.Steps) > 0 {
		f.steps = spec.Steps
	}
	if spec != nil && spec.Pause != nil {
		f.pause = spec.Pause.Duration
	}
	for _, a := range answers {
		if a.State != v1alpha1.NodeUnsupported {
			f.nodes = append(f.nodes, node{a, intent.NodeHash(uid, a.Node)})
		}
	}
	f.selected = len(f.nodes)
	slices.SortFunc(f.nodes, func(a, b node) int { return strings.Compare(a.hash, b.hash) })
	return f
}

// Start is the first step of a version that comes at least as far as through;
// nil where the first step is every node.
func (f Fleet) Start(through string) *intent.Rollout {
	if f.size(1) >= f.selected {
		return nil
	}
	return &intent.Rollout{Step: 1, Through: max(through, f.through(f.size(1)))}
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

// through is the hash of the n-th able node, or of the last one.
func (f Fleet) through(n int) string {
	last := ""
	for _, one := range f.nodes {
		if n == 0 {
			break
		}
		if one.able() {
			last = one.hash
			n--
		}
	}
	return last
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

// Look says how the rollout at a step does that was sealed so long ago, of a
// version sealed at a time. resumed has the step count as done, whatever its
// nodes say.
func (f Fleet) Look(at intent.Rollout, version time.Time, age time.Duration, resumed bool) Progress {
	reached := f.reached(at, version)
	p := Progress{Status: v1alpha1.RolloutStatus{
		State: v1alpha1.RolloutProgressing, Step: int32(at.Step), Steps: int32(f.last()), Nodes: int32(reached.nodes),
	}}
	step := fmt.Sprintf("step %d of %d", at.Step, f.last())
	wider := at.Through
	if at.Step <= len(f.steps) {
		wider = f.through(f.size(at.Step))
	}
	switch {
	case resumed:
		p.Moves, p.Next = true, f.after(at)
	case reached.failed != nil:
		p.Status.State = v1alpha1.RolloutStopped
		p.Status.Message = fmt.Sprintf("stopped at %s: %s: %s; the other nodes keep the version before. Change the definition, or see skep rollout resume and undo",
			step, reached.failed.Node, reached.failed.Message)
	case reached.left != nil:
		p.Status.Message = fmt.Sprintf("%s: %s went away since it has the version; it is waited for, see skep rollout resume and undo", step, reached.left.Node)
	case reached.pending > 0:
		p.Status.Message = fmt.Sprintf("%s: %d of %d nodes have the version", step, reached.loaded, reached.nodes)
	case wider > at.Through:
		p.Moves, p.Next = true, &intent.Rollout{Step: at.Step, Through: wider}
	case reached.loaded+reached.waiting == 0:
		p.Status.Message = step + ": no node of it is reachable"
	case age < f.pause:
		p.After = f.pause - age
		p.Status.State = v1alpha1.RolloutPaused
		p.Status.Message = fmt.Sprintf("%s is done on %d nodes; the next one begins %s after it", step, reached.loaded, f.pause)
	default:
		p.Moves, p.Next = true, f.after(at)
	}
	return p
}

// reach counts what a step has come to.
type reach struct {
	nodes, loaded, pending, waiting int
	// failed is the first that failed, left one that went away since the version
	// is there: perhaps because of it.
	failed, left *node
}

func (f Fleet) reached(at intent.Rollout, version time.Time) reach {
	var r reach
	for i, n := range f.nodes {
		if n.hash > at.Through {
			break
		}
		r.nodes++
		switch {
		case !n.Reachable && n.Gone != nil && n.Gone.After(version):
			r.left = &f.nodes[i]
		case !n.Reachable:
		case n.State == v1alpha1.NodeLoaded:
			r.loaded++
		case n.State == v1alpha1.NodeWaiting:
			r.waiting++
		case n.State == v1alpha1.NodeFailed && r.failed == nil:
			r.failed = &f.nodes[i]
		default:
			r.pending++
		}
	}
	return r
}

// after is the next step that comes further than this one; nil where that is
// every node.
func (f Fleet) after(at intent.Rollout) *intent.Rollout {
	for step := at.Step + 1; step <= len(f.steps); step++ {
		size := f.size(step)
		if size >= f.selected {
			return nil
		}
		if wider := f.through(size); wider > at.Through {
			return &intent.Rollout{Step: step, Through: wider}
		}
	}
	return nil
}
