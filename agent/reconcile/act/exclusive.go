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
func (act *Actor) holder(a plan.Action) *pins.Link {
	if _, exclusive := a.Attachment.Exclusive(); !exclusive {
		return nil
	}
	for _, key := range []string{a.Attachment.Key(), a.Replaces} {
		if l := act.Look.Set.Links[a.UID][key]; l != nil && !l.IsElsewhere(act.Look.Facts(l.Path, l.Link)) {
			return l
		}
	}
	return nil
}

// takePlace attaches at a place that one program has alone, and that a link of the same
// application is to leave. Until the new link is there, the old program runs near it by a
// link with the old one's pin: whatever fails, and wherever the agent ends, the old version
// runs.
func (act *Actor) takePlace(r attach.Request, held *pins.Link) (pins.Held, error) {
	near := r
	near.Attachment = held.Attachment
	// They are one network namespace, and that of the request was found.
	near.Attachment.Target.NetworkNamespace = r.Attachment.NetworkNamespace
	if program := act.runBy(held); program != nil {
		near.Program = program
	}
	standIn, err := attach.Near(near)
	if err != nil {
		return nil, err
	}
	if err := act.putLink(held.UID, held.Attachment, held.SpecID, standIn); err != nil {
		return nil, err
	}
	return attach.To(r)
}

// runBy returns the program that a link runs; nil where no revision has it.
func (act *Actor) runBy(l *pins.Link) *ebpf.Program {
	r := act.Look.Set.Revisions[l.UID][act.Look.RevisionOf(l, act.Look.Facts(l.Path, l.Link))]
	if r == nil {
		return nil
	}
	return r.Programs[l.Attachment.Instance]
}

// heldBy names the program of ours that has the place of an action's attachment, but for
// one that is to leave it; empty where none has.
func (act *Actor) heldBy(a plan.Action) string {
	place, exclusive := a.Attachment.Exclusive()
	if !exclusive {
		return ""
	}
	for uid, links := range act.Look.Set.Links {
		for key, l := range links {
			if is, _ := l.Attachment.Exclusive(); is == place && (uid != a.UID || key != a.Attachment.Key() && key != a.Replaces) {
				return fmt.Sprintf("program %s of application %s", l.Attachment.Program, act.Decisions.NameOf(uid))
			}
		}
	}
	return ""
}
