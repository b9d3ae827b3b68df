package nodeview

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

// What a scoped description has in the place of words that are not its reader's, and of what could not be read.
const (
	withheld = "(withheld)"
	unread   = "parts of the node could not be read, or did not fit"
)

// Redact returns the part of a description that a reader with the scope may see. Of others it has counts, and no name, pod, place or log:
// what is not known to be the reader's is taken away. Messages of the reader's own applications are as a team may read them: they stay as they
// are, since to withhold what others are called would confirm a guess. It is pure, and leaves the whole as it is.
func Redact(whole view.NodeView, scope view.Scope) view.NodeView {
	if scope.IsWhole() {
		return whole
	}
	n := view.NodeView{TypeMeta: whole.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: whole.Name}, Observed: whole.Observed, Scope: scope,
		Agent: whole.Agent, Kernel: whole.Kernel, Applications: []view.Application{}, Others: &view.Others{}}
	r := redaction{scope: scope, orders: map[order]view.Interface{}}
	for _, i := range whole.Interfaces {
		r.orders[orderOf(i.Hook, i.Target)] = i
	}
	for _, a := range whole.Applications {
		if !scope.Has(a.Identity) {
			n.Others.Applications++
			continue
		}
		n.Applications = append(n.Applications, r.application(a))
	}
	for _, p := range whole.Programs {
		if p.Application == nil || !scope.Has(*p.Application) {
			n.Others.Programs++
			continue
		}
		n.Programs = append(n.Programs, view.Program{ID: p.ID, Type: p.Type, Name: p.Name, Tag: p.Tag, Application: p.Application, Chain: p.Chain,
			Attached: placesOf(n.Applications, *p.Application, p.ID), LoadedAt: p.LoadedAt, MemoryBytes: p.MemoryBytes, JITBytes: p.JITBytes, Cost: p.Cost})
	}
	for _, l := range whole.Loads {
		if scope.Has(l.Application) {
			n.Loads = append(n.Loads, l)
		}
	}
	if len(whole.LeftOut) > 0 {
		n.LeftOut = []string{unread}
	}
	return n
}

// order is a place where programs run in an order.
type order struct {
	hook    string
	ifindex int
	netns   uint64
}

func orderOf(hook string, t view.Target) order { return order{hook, t.Ifindex, t.NetworkNamespace} }

// redaction is one call of Redact.
type redaction struct {
	scope  view.Scope
	orders map[order]view.Interface
}

// application redacts one of the reader's.
func (r redaction) application(a view.Application) view.Application {
	if strings.HasPrefix(a.VerifierLog, agent.JointLog) {
		// It has the source of others.
		a.VerifierLog = agent.JointLog + " " + withheld
	}
	a.Pods = slices.DeleteFunc(slices.Clone(a.Pods), func(pod string) bool { return !r.hasPod(pod) })
	attachments := a.Attachments
	a.Attachments = []view.Attachment{}
	for _, at := range attachments {
		if at.Target.Pod != "" && !r.hasPod(at.Target.Pod) {
			continue
		}
		at.Notes = r.notes(a.Identity, at)
		a.Attachments = append(a.Attachments, at)
	}
	return a
}

// hasPod reports whether the reader may see a pod: that of a namespace its pods.
func (r redaction) hasPod(pod string) bool {
	return r.scope.Namespace == "" || strings.HasPrefix(pod, r.scope.Namespace+"/")
}

// notes are those of an attachment, with counts in the place of names.
func (r redaction) notes(id v1alpha1.Identity, at view.Attachment) (all []string) {
	switch n := r.behind(id, at); n {
	case 0:
	case 1:
		all = append(all, "behind a program of the node, which can end the chain")
	default:
		all = append(all, fmt.Sprintf("behind %d programs of the node, each of which can end the chain", n))
	}
	for _, note := range at.Notes {
		if strings.HasPrefix(note, agent.NeverRanNote) {
			all = append(all, note)
		}
	}
	return all
}

// behind counts the programs that Skep did not attach and that run before an attachment.
func (r redaction) behind(id v1alpha1.Identity, at view.Attachment) (n int) {
	if at.Position == 0 {
		return 0
	}
	_, side, _ := strings.Cut(at.Hook, "/")
	for _, hook := range []string{at.Hook, "tc/" + side} {
		members := r.orders[orderOf(hook, at.Target)].Members
		if len(members) < at.Position {
			continue
		}
		if is := members[at.Position-1]; is.Application == nil || *is.Application != id || is.Program != at.Program {
			continue
		}
		for _, m := range members[:at.Position-1] {
			if m.Application == nil {
				n++
			}
		}
		return n
	}
	return 0
}

// placesOf are the places of a program of an application, as HOOK@TARGET.
func placesOf(all []view.Application, id v1alpha1.Identity, program uint32) (places []string) {
	for _, a := range all {
		for _, at := range a.Attachments {
			if a.Identity == id && at.ProgramID == program && at.LinkID != 0 {
				places = append(places, path(at.Hook+"@"+at.Target.Text))
			}
		}
	}
	return places
}
