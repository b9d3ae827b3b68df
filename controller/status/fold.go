// Package status folds what the nodes say into what an application's status
// says.
//
// It is pure: it takes values and returns values, and neither reads nor writes
// the API server.
package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Node is one node of the cluster as the fold sees it.
type Node struct {
	Name   string
	Labels map[string]string
	// Ready tells that the node is alive and an agent runs there.
	Ready bool
	// Gone is when it was no longer ready, as far as that is known; nil where it
	// is.
	Gone *time.Time
	// Reported is what its agent says; nil where it has said nothing yet.
	Reported *v1alpha1.BpfNodeStatus
}

// Wanted is what the newest intent wants.
type Wanted struct {
	UID string
	// Serial is that of the newest version; what a node says of another one is no
	// answer.
	Serial int64
	// Selector chooses the nodes; nil means every node.
	Selector *metav1.LabelSelector
	// Needs is what a kernel has to have.
	Needs Needs
	// Reaches tells whether a node is to have the newest version by now; nil
	// means every one.
	Reaches func(node string) bool
}

// Needs is what a kernel has to have to hold an application.
type Needs struct {
	// Hooks are names of hook.Table, MapTypes the types of maps as bytecode's
	// facts name them.
	Hooks, MapTypes []string
}

// Missing says what a node lacks, in one line: its kernel, or its agent's rights;
// empty where it lacks nothing, or where its profile is not known.
func (n Needs) Missing(k v1alpha1.KernelProfile) string {
	var missing, said []string
	for _, h := range n.Hooks {
		if why := denied(k, h); why != "" {
			said = append(said, fmt.Sprintf("the agent may not attach to hook %s: %s", h, why))
		} else if len(k.Hooks) > 0 && !slices.Contains(k.Hooks, h) {
			missing = append(missing, "hook "+h)
		}
	}
	for _, m := range n.MapTypes {
		if len(k.MapTypes) > 0 && !slices.Contains(k.MapTypes, m) {
			missing = append(missing, "map type "+m)
		}
	}
	if len(missing) > 0 {
		said = append([]string{fmt.Sprintf("kernel %s has no %s", k.Release, strings.Join(missing, ", "))}, said...)
	}
	return strings.Join(said, "; ")
}

// denied is why the agent may not attach to a hook; empty where it may.
func denied(k v1alpha1.KernelProfile, name string) string {
	for _, d := range k.Denied {
		if slices.Contains(d.Hooks, name) {
			return d.Why
		}
	}
	return ""
}

// Answer is what is known of the newest intent on one selected node.
type Answer struct {
	Node string
	// Reachable tells that the node is alive and has spoken of the application;
	// State and Message say nothing where it has not. Untold tells that it is
	// alive, and that its report had no room.
	Reachable, Untold bool
	// Gone is when a node that had spoken went away; nil where it did not, or
	// that is not known.
	Gone    *time.Time
	State   v1alpha1.NodeState
	Message string
}

// Answers is what is known on each node that w selects, by name. It is an error
// if the selector cannot be read.
func Answers(w Wanted, nodes []Node) ([]Answer, error) {
	selector := labels.Everything()
	if w.Selector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(w.Selector); err != nil {
			return nil, fmt.Errorf("read node selector: %w", err)
		}
	}
	var all []Answer
	for _, n := range nodes {
		if !selector.Matches(labels.Set(n.Labels)) {
			continue
		}
		a := Answer{Node: n.Name, Reachable: n.Ready && n.Reported != nil}
		if n.Reported != nil {
			a.Gone = n.Gone
		}
		if a.Reachable {
			a.State, a.Message = answer(w, n.Name, *n.Reported)
			a.Untold = a.State == ""
			a.Reachable = !a.Untold
		}
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b Answer) int { return strings.Compare(a.Node, b.Node) })
	return all, nil
}

// Fold counts the nodes that w selects, each once, and names the first of those
// that fail. It is an error if the selector cannot be read.
func Fold(w Wanted, nodes []Node) (v1alpha1.NodesStatus, error) {
	answers, err := Answers(w, nodes)
	if err != nil {
		return v1alpha1.NodesStatus{}, err
	}
	s := v1alpha1.NodesStatus{}
	for _, a := range answers {
		s.Selected++
		if !a.Reachable {
			*away(&s, a)++
			continue
		}
		*counter(&s, a.State)++
		if (a.State == v1alpha1.NodeFailed || a.State == v1alpha1.NodeUnsupported) && len(s.Failing) < v1alpha1.MaxFailingNodes {
			s.Failing = append(s.Failing, v1alpha1.NodeFailure{Node: a.Node, State: a.State, Message: a.Message})
		}
	}
	s.Summary = fmt.Sprintf("%d/%d", s.Loaded, s.Selected)
	return s, nil
}

// away is where a node is counted that says nothing of the application.
func away(s *v1alpha1.NodesStatus, a Answer) *int32 {
	if a.Untold {
		return &s.Untold
	}
	return &s.Unreachable
}

// answer is what one reachable node says of the newest intent; an empty state
// where its report had no room for the application.
func answer(w Wanted, name string, n v1alpha1.BpfNodeStatus) (v1alpha1.NodeState, string) {
	if missing := w.Needs.Missing(n.Kernel); missing != "" {
		return v1alpha1.NodeUnsupported, missing
	}
	if w.Reaches != nil && !w.Reaches(name) {
		return v1alpha1.NodeHeld, ""
	}
	switch a := n.Of(w.UID); {
	case a != nil && a.Serial == w.Serial:
		return a.State, a.Message
	case a == nil && n.Counts.Untold > 0:
		return "", ""
	}
	return v1alpha1.NodePending, ""
}

// counter is where a state is counted. A node that was selected and says it is
// not has not seen its labels or the intent yet.
func counter(s *v1alpha1.NodesStatus, state v1alpha1.NodeState) *int32 {
	switch state {
	case v1alpha1.NodeLoaded:
		return &s.Loaded
	case v1alpha1.NodeFailed:
		return &s.Failed
	case v1alpha1.NodeUnsupported:
		return &s.Unsupported
	case v1alpha1.NodeHeld:
		return &s.Held
	case v1alpha1.NodePending, v1alpha1.NodeWaiting, v1alpha1.NodeNotSelected, v1alpha1.NodeRemoved:
	}
	return &s.Pending
}
