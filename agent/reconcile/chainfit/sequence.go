package chainfit

import (
	"cmp"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/others"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
)

// Compare orders by interface, and then by where a packet comes first. It returns what cmp.Compare does.
func (s Status) Compare(other Status) int {
	way := []string{plan.XDP, "netkit/primary", "netkit/peer", "tcx/ingress", "tc/ingress", "tcx/egress", "tc/egress"}
	return cmp.Or(cmp.Compare(s.NetnsID, other.NetnsID), cmp.Compare(s.Ifindex, other.Ifindex),
		cmp.Compare(slices.Index(way, s.Hook), slices.Index(way, other.Hook)))
}

// Sequences tells what runs on the hooks of interfaces whose order the kernel keeps, or that have filters, with the
// programs of others.
func Sequences(look *live.Look, now time.Time) []Status {
	var ours []others.Step
	for l := range look.Links() {
		ours = append(ours, others.Step{Link: l, Facts: look.Facts(l)})
	}
	var all []Status
	for _, is := range look.Others.Sequences(ours) {
		on := look.Interface(is.On)
		s := Status{Interface: on.Name, Hook: is.Hook, Ifindex: is.On.Index, NetnsID: is.On.NetnsID, In: on.In}
		if is.Err != nil {
			s.Error = is.Err.Error()
		}
		for _, step := range is.Steps {
			s.Members = append(s.Members, member(look, step, now))
		}
		all = append(all, s)
	}
	return all
}

// member is one program of a sequence.
func member(look *live.Look, step others.Step, now time.Time) MemberStatus {
	if step.Link == nil {
		return MemberStatus{Program: step.Other.Name, Unmanaged: true, ID: step.Other.ID, Pref: step.Other.Pref}
	}
	at := step.Link.Attachment
	notes := report.LinkStatus{Hook: at.Hook, Behind: look.Others.Ahead(at, step.Facts), NeverRan: report.LinkNeverRan(look, step.Link, step.Facts, now)}.Notes()
	return MemberStatus{Application: at.Application.String(), Program: at.Program, Priority: at.Priority, ID: uint32(step.Facts.Program),
		Pref: step.Facts.Filter.Pref, Notes: notes}
}
