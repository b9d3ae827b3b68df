package act

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
)

// holder returns the link of an action's application that is at the place of the action's
// attachment and is to leave it; nil where there is none.
func (mk *linkMaker) holder(a plan.Action) *pins.Link {
	if _, exclusive := a.Attachment.Exclusive(); !exclusive {
		return nil
	}
	for _, key := range []string{a.Attachment.Key(), a.Replaces} {
		if l := mk.Look.Link(a.UID, key); l != nil && !l.IsElsewhere(mk.Look.Facts(l)) {
			return l
		}
	}
	return nil
}

// takePlace attaches at a place that one program has alone, and that a link of the same
// application is to leave. Until the new link is there, the old program runs near it by a
// link with the old one's pin: whatever fails, and wherever the agent ends, the old version
// runs.
func (mk *linkMaker) takePlace(r attach.Request, held *pins.Link) (pins.Held, error) {
	near := r
	near.Attachment = held.Attachment
	// They are one network namespace, and that of the request was found.
	near.Attachment.Target.NetworkNamespace = r.Attachment.NetworkNamespace
	if program := mk.runBy(held); program != nil {
		near.Program = program
	}
	standIn, err := attach.Near(near)
	if err != nil {
		return nil, err
	}
	if err := mk.putLink(held.UID, held.Attachment, held.SpecID, standIn); err != nil {
		return nil, err
	}
	return attach.To(r)
}

// runBy returns the program that a link runs; nil where no revision has it.
func (mk *linkMaker) runBy(l *pins.Link) *ebpf.Program {
	r := mk.Look.Revision(l.UID, mk.Look.RevisionOf(l, mk.Look.Facts(l)))
	if r == nil {
		return nil
	}
	return r.Programs[l.Attachment.Instance]
}

// heldBy names the program of ours that has the place of an action's attachment, but for
// one that is to leave it; empty where none has.
func (mk *linkMaker) heldBy(a plan.Action) string {
	place, exclusive := a.Attachment.Exclusive()
	if !exclusive {
		return ""
	}
	for l := range mk.Look.Links() {
		key := l.Attachment.Key()
		if is, _ := l.Attachment.Exclusive(); is == place && (l.UID != a.UID || key != a.Attachment.Key() && key != a.Replaces) {
			if reader, holder := a.Attachment.Application, l.Attachment.Application; reader.IsNamespaced() && reader.Namespace != holder.Namespace {
				return "a program of " + plan.Whose(reader, holder)
			}
			return fmt.Sprintf("program %s of application %s", l.Attachment.Program, mk.Decisions.NameOf(l.UID))
		}
	}
	return ""
}
