package chainfit

import (
	"cmp"
	"slices"

	"github.com/skep-dev/skep/agent/reconcile/others"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/state/pins"
)

// Compare orders by interface, and then by where a packet comes first. It returns what cmp.Compare does.
func (s Status) Compare(other Status) int {
	way := []string{plan.XDP, "netkit/primary", "netkit/peer", "tcx/ingress", "tc/ingress", "tcx/egress", "tc/egress"}
	return cmp.Or(cmp.Compare(s.NetnsID, other.NetnsID), cmp.Compare(s.Ifindex, other.Ifindex),
		cmp.Compare(slices.Index(way, s.Hook), slices.Index(way, other.Hook)))
}

// Sequences tells what runs on the hooks of interfaces whose order the kernel keeps, or that have filters, with the
// programs of others. on is the interface of a device where one of ours runs by a link, and neverRan is as in report.LinkStatus.
func Sequences(read *others.Round, ours []others.Step, on func(plan.Device, plan.Target) plan.Target, neverRan func(*pins.Link) uint64) []Status {
	targets := map[plan.Device]plan.Target{}
	for _, step := range ours {
		targets[step.Link.Attachment.Target.Device()] = step.Link.Attachment.Target
	}
	var all []Status
	for _, is := range read.Sequences(ours) {
		on := on(is.On, targets[is.On])
		s := Status{Interface: on.Interface, Hook: is.Hook, Ifindex: is.On.Index, NetnsID: is.On.NetnsID, In: on.In}
		if is.Err != nil {
			s.Error = is.Err.Error()
		}
		for _, step := range is.Steps {
			s.Members = append(s.Members, member(read, step, neverRan))
		}
		all = append(all, s)
	}
	return all
}

// member is one program of a sequence.
func member(read *others.Round, step others.Step, neverRan func(*pins.Link) uint64) MemberStatus {
	if step.Link == nil {
		return MemberStatus{Program: step.Other.Name, Unmanaged: true, ID: step.Other.ID, Pref: step.Other.Pref}
	}
	at := step.Link.Attachment
	notes := report.LinkStatus{Hook: at.Hook, Behind: read.Ahead(at, step.Facts), NeverRan: neverRan(step.Link)}.Notes()
	return MemberStatus{UID: step.Link.UID, Identity: at.Application, Application: at.Application.String(), Program: at.Program, Priority: at.Priority,
		ID: uint32(step.Facts.Program), Pref: step.Facts.Filter.Pref, Notes: notes}
}
