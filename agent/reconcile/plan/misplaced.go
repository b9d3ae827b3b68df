package plan

import (
	"github.com/skep-dev/skep/agent/reconcile/plan/order"
	"github.com/skep-dev/skep/hook"
)

// Turn is when the link's program is to run among those of an ordered hook.
func (l *Link) Turn() order.Turn {
	a := &l.Attachment
	return order.Turn{Rank: a.Rank(), Priority: a.Priority, Application: a.Application, Program: a.Program, UID: l.UID}
}

// Rank is the part of an ordered hook in which the attachment is.
func (a *Attachment) Rank() order.Rank { return order.RankOf(a.Application, a.AfterNamespaces) }

func (m *Member) turn() order.Turn {
	return order.Turn{Rank: m.Rank(), Priority: m.Priority, Application: m.Identity, Program: m.Program, UID: m.UID}
}

// Rank is the part of the chain in which the member is.
func (m *Member) Rank() order.Rank { return order.RankOf(m.Identity, m.AfterNamespaces) }

// misplaced finds the links that run in another order than they are to, and of those the fewest that need to
// move, in the order in which they are to do so. Programs of others do not matter: ours move around them, and
// around what is frozen. Those that strayed among others move, too.
func (p *planner) misplaced(found map[id]*Link) []id {
	type target struct {
		Device
		hook string
	}
	places := map[target][]order.Place{}
	var targets []target
	add := func(uid string, a *Attachment, isFrozen bool) {
		h, ok := hook.Lookup(a.Hook)
		if !ok || !h.TakesPriority() || a.Hook == XDP {
			return
		}
		id := p.id(uid, a)
		old := found[id]
		if old == nil || old.Severed || old.Unplaced {
			return
		}
		at := target{a.Target.Device(), a.Hook}
		if places[at] == nil {
			targets = append(targets, at)
		}
		places[at] = append(places[at], order.Place{ID: int(id), Turn: (&Link{UID: uid, Attachment: *a}).Turn(), Position: old.Position,
			Fixed: isFrozen, Strayed: old.Strayed})
	}
	for _, app := range p.want.Applications {
		for i := range app.Attachments {
			add(app.UID, &app.Attachments[i], false)
		}
	}
	for i := range p.have.Links {
		if l := &p.have.Links[i]; p.frozen[l.UID] {
			add(l.UID, &l.Attachment, true)
		}
	}
	var all []id
	for _, at := range targets {
		for _, m := range order.Movers(places[at]) {
			all = append(all, id(m.ID))
		}
	}
	return all
}
