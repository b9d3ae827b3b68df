// Package status folds what the nodes say into what an application's status
// says.
//
// It is pure: it takes values and returns values, and neither reads nor writes
// the API server.
package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/placement"
	"github.com/skep-dev/skep/text"
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
	// Revision is that version's: a node that runs another one does not run it,
	// whatever serial it tells. Empty means that this is not compared.
	Revision string
	// Selector chooses the nodes; nil means every node.
	Selector *metav1.LabelSelector
	// Needs is what a kernel has to have.
	Needs placement.Needs
	// Reaches reports whether a node is to have the newest version by now; nil
	// means every one.
	Reaches func(node string) bool
}

// Answer is what is known of the newest intent on one selected node.
type Answer struct {
	Node string
	// Reachable tells that the node is alive and has spoken of the application;
	// State and Message say nothing where it has not. NotReported tells that it is
	// alive, and that its report had no room.
	Reachable, NotReported bool
	// Gone is when a node that had spoken went away; nil where it did not, or
	// that is not known.
	Gone    *time.Time
	State   v1alpha1.NodeState
	Message string
	// Tried tells that the node itself says so of this version, and not its profile
	// alone.
	Tried bool
	// Skipped says what a node that runs it is without.
	Skipped string
	// KernelWarning says what its kernel may lack, where nothing says that it holds it.
	KernelWarning string
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
			a.Tried = a.State == v1alpha1.NodeUnsupported && w.Needs.Missing(n.Reported.Kernel) == ""
			a.NotReported = a.State == ""
			a.Reachable = !a.NotReported
		}
		if said := n.Reported; a.Reachable && a.State == v1alpha1.NodeLoaded {
			a.Skipped = of(said, w.UID).Skipped
		}
		if a.Reachable && a.State != v1alpha1.NodeLoaded && a.State != v1alpha1.NodeUnsupported {
			a.KernelWarning = w.Needs.Doubt(text.Line(n.Reported.Kernel.Release))
		}
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b Answer) int { return strings.Compare(a.Node, b.Node) })
	return all, nil
}

// Fold counts the nodes that w selects, each once, and names the first of those
// that do not have it. It is an error if the selector cannot be read.
func Fold(w Wanted, nodes []Node) (v1alpha1.NodesStatus, error) {
	answers, err := Answers(w, nodes)
	if err != nil {
		return v1alpha1.NodesStatus{}, err
	}
	s := v1alpha1.NodesStatus{}
	for _, a := range answers {
		s.Selected++
		counted := counter(&s, a)
		*counted++
		switch {
		case counted == &s.Unreachable:
			s.FirstUnreachable = cmp.Or(s.FirstUnreachable, a.Node)
		case counted == &s.Pending && a.State != v1alpha1.NodeWaiting:
			s.FirstPending = cmp.Or(s.FirstPending, a.Node)
		case (counted == &s.Failed || counted == &s.Unsupported) && len(s.Failing) < v1alpha1.MaxFailingNodes:
			s.Failing = append(s.Failing, v1alpha1.NodeFailure{Node: a.Node, State: a.State, Message: a.Message})
		}
	}
	s.Summary = fmt.Sprintf("%d/%d", s.Loaded, s.Selected)
	s.Waiting = first(answers, func(a Answer) string {
		if a.State != v1alpha1.NodeWaiting {
			return ""
		}
		return a.Message
	})
	s.Skipped = first(answers, func(a Answer) string { return a.Skipped })
	s.Notice = first(answers, func(a Answer) string {
		if a.State != v1alpha1.NodeLoaded {
			return ""
		}
		return a.Message
	})
	s.KernelWarning = first(answers, func(a Answer) string { return a.KernelWarning })
	return s, nil
}

// first names the first node of which there is something to say, and counts the
// others.
func first(answers []Answer, say func(Answer) string) string {
	first, count := "", 0
	for _, a := range answers {
		said := say(a)
		if said == "" {
			continue
		}
		if count++; count == 1 {
			first = a.Node + ": " + said
		}
	}
	if count > 1 {
		first += fmt.Sprintf(" (and %d more)", count-1)
	}
	return first
}

// of returns what a node says of an application, with each text on one line: kubectl describe prints line ends as they are, and the next line
// could look like another field or an event.
func of(n *v1alpha1.BpfNodeStatus, uid string) *v1alpha1.NodeApplication {
	found := n.Of(uid)
	if found == nil || found.Message == "" && found.Skipped == "" {
		return found
	}
	a := *found
	a.Message, a.Skipped = text.Line(a.Message), text.Line(a.Skipped)
	return &a
}

// answer is what one reachable node says of the newest intent; an empty state
// where its report had no room for the application.
func answer(w Wanted, name string, n v1alpha1.BpfNodeStatus) (v1alpha1.NodeState, string) {
	if missing := w.Needs.Missing(n.Kernel); missing != "" {
		return v1alpha1.NodeUnsupported, missing
	}
	a := of(&n, w.UID)
	switch {
	case a != nil && a.Serial > w.Serial:
		// It has seen a newer intent, which the API server lost.
		return v1alpha1.NodePending, ""
	case w.Reaches != nil && !w.Reaches(name) && a != nil && a.State == v1alpha1.NodeFailed:
		// It cannot have what it is held at, and may run nothing.
		return a.State, "the version before: " + a.Message
	case w.Reaches != nil && !w.Reaches(name):
		return v1alpha1.NodeRetained, ""
	case a != nil && a.Serial == w.Serial && a.State == v1alpha1.NodeLoaded && w.Revision != "" && a.Revision != "" && a.Revision != w.Revision:
		return v1alpha1.NodeFailed, fmt.Sprintf("it runs revision %s, and under serial %d revision %s is sealed; change the application, which seals a newer serial",
			text.Line(a.Revision), a.Serial, w.Revision)
	case a != nil && a.Serial == w.Serial:
		return a.State, a.Message
	case a == nil && n.Counts.NotReported > 0:
		return "", ""
	}
	return v1alpha1.NodePending, ""
}

// counter is where an answer is counted. A node that was selected and says it is
// not has not seen its labels or the intent yet.
func counter(s *v1alpha1.NodesStatus, a Answer) *int32 {
	switch {
	case a.NotReported:
		return &s.NotReported
	case !a.Reachable:
		return &s.Unreachable
	}
	switch a.State {
	case v1alpha1.NodeLoaded:
		return &s.Loaded
	case v1alpha1.NodeFailed:
		return &s.Failed
	case v1alpha1.NodeUnsupported:
		return &s.Unsupported
	case v1alpha1.NodeRetained:
		return &s.Retained
	case v1alpha1.NodePending, v1alpha1.NodeWaiting, v1alpha1.NodeNotSelected, v1alpha1.NodeRemoved:
	}
	return &s.Pending
}
