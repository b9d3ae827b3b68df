package plan

import (
	"cmp"
	"slices"

	"github.com/skep-dev/skep/hook"
)

// XDP is the one hook whose programs share a link.
const XDP = "xdp"

// Make returns the actions that lead from what was found to what is wanted.
// What is to leave nothing behind goes first, with the chains that only end
// something: no attachment comes before another application's unload. Of the rest,
// links come before chains, what is made before what is taken away, and a
// revision is dropped when nothing that stays runs it.
func Make(want Want, have State) []Action {
	p := newPlanner(want, have)
	p.wantedChains = WantedChains(want, have)
	p.endings()
	p.links()
	p.chains()
	p.leftovers()
	p.drops()
	return p.actions
}

// Endings returns those actions of Make that need no claim, no load and no look at anybody else:
// they take away the links of who is to leave nothing behind, and the chains of which all
// members are theirs. Of want, only Gone counts, so that it need not be complete.
func Endings(want Want, have State) []Action {
	p := newPlanner(want, have)
	p.detachGone()
	exists := labelsOf(have.Interfaces)
	for _, c := range have.Chains {
		given := c.given()
		if len(given) > 0 && !slices.ContainsFunc(given, func(m Member) bool { return !p.gone[m.UID] }) {
			p.add(Action{Verb: SetChain, Device: c.Device, Interface: cmp.Or(exists[c.Device], Interface{Device: c.Device}.Label())})
		}
	}
	return p.actions
}

func newPlanner(want Want, have State) planner {
	return planner{want: want, have: have, frozen: set(want.Frozen), gone: set(want.Gone),
		ids: make(map[identity]id, len(have.Links)), idOf: make(map[*Attachment]id, len(have.Links))}
}

type planner struct {
	want    Want
	have    State
	frozen  map[string]bool
	gone    map[string]bool
	actions []Action
	// wanted are the links that stay, and replaced those that go when another one of their
	// application takes their place.
	wanted, replaced map[id]bool
	// ids are those that were given, and idOf those of attachments of want and have.
	ids  map[identity]id
	idOf map[*Attachment]id
	// wantedChains are those of want, one for each interface.
	wantedChains []Chain
}

// identity is what an application's attachment is known by, whatever its revision.
type identity struct {
	uid string
	of  Attachment
}

// id stands for an identity.
type id int

// id returns that of an attachment of want or have, which it looks at once.
func (p *planner) id(uid string, a *Attachment) id {
	known, seen := p.idOf[a]
	if !seen {
		is := identity{uid, a.Unnamed()}
		if known, seen = p.ids[is]; !seen {
			known = id(len(p.ids))
			p.ids[is] = known
		}
		p.idOf[a] = known
	}
	return known
}

// add adds an action. They are large and may be thousands: the list doubles.
func (p *planner) add(a Action) {
	if len(p.actions) == cap(p.actions) {
		p.actions = slices.Grow(p.actions, len(p.actions)+1)
	}
	p.actions = append(p.actions, a)
}

// endings takes away the links of who is to leave nothing behind, and sets the chains
// that only end something.
func (p *planner) endings() {
	p.detachGone()
	p.setChains(true)
}

// detachGone takes away the links of who is to leave nothing behind.
func (p *planner) detachGone() {
	for _, l := range p.have.Links {
		if p.gone[l.UID] {
			p.add(Action{Verb: Detach, UID: l.UID, Revision: l.Revision, Attachment: l.Attachment})
		}
	}
}

// links makes and updates the links of all hooks but xdp.
func (p *planner) links() {
	found := make(map[id]*Link, len(p.have.Links))
	for i := range p.have.Links {
		l := &p.have.Links[i]
		found[p.id(l.UID, &l.Attachment)] = l
	}
	p.noteWanted()
	misplaced, holders := p.misplaced(found), p.holders()
	moves := make(map[id]Action, len(misplaced))
	for _, id := range misplaced {
		moves[id] = Action{}
	}
	for _, app := range sorted(p.want.Applications) {
		for i := range app.Attachments {
			a := &app.Attachments[i]
			if a.Hook == XDP {
				continue
			}
			id := p.id(app.UID, a)
			old := found[id]
			verb, replaces := linkVerb(old, app.Revision, a), ""
			if _, moved := moves[id]; moved {
				moves[id] = Action{Verb: Move, UID: app.UID, Revision: app.Revision, Attachment: *a}
				continue
			}
			if verb == Attach {
				verb, replaces = p.attach(app, a, holders)
			}
			if verb != "" {
				p.add(Action{Verb: verb, UID: app.UID, Revision: app.Revision, Attachment: *a, Replaces: replaces})
			}
		}
	}
	for _, id := range misplaced {
		p.add(moves[id])
	}
}

// noteWanted notes which links stay. What is attached to XDP has none of its own.
func (p *planner) noteWanted() {
	p.wanted, p.replaced = make(map[id]bool, len(p.idOf)), map[id]bool{}
	for _, app := range p.want.Applications {
		for i := range app.Attachments {
			if a := &app.Attachments[i]; a.Hook != XDP {
				p.wanted[p.id(app.UID, a)] = true
			}
		}
	}
}

// attach returns how an attachment without a link is made: in the place of the link of a holder,
// whose key it returns, or as a link of its own.
func (p *planner) attach(app Application, a *Attachment, holders map[holder]*Link) (verb Verb, replaces string) {
	at, ok := holderOf(app.UID, a)
	if !ok {
		return Attach, ""
	}
	held, ok := holders[at]
	if !ok {
		return Attach, ""
	}
	p.replaced[p.id(app.UID, &held.Attachment)] = true
	delete(holders, at)
	return linkVerb(held, app.Revision, a), held.Attachment.Key()
}

// holder is an application at a place that takes one program, or at one of a file that
// containers share.
type holder struct {
	uid    string
	place  ExclusivePlace
	inFile Attachment
}

func holderOf(uid string, a *Attachment) (holder, bool) {
	place, exclusive := a.Exclusive()
	inFile, shared := a.InSharedFile()
	switch {
	case exclusive:
		return holder{uid: uid, place: place}, true
	case shared:
		return holder{uid: uid, inFile: inFile}, true
	}
	return holder{}, false
}

// holders are the links that are not wanted any more and that have a place which takes one
// program, or which containers share. What their application attaches there takes it over from
// them: a link through a container that ended goes on for the others.
func (p *planner) holders() map[holder]*Link {
	all := map[holder]*Link{}
	for i := range p.have.Links {
		l := &p.have.Links[i]
		at, ok := holderOf(l.UID, &l.Attachment)
		if ok && !l.Severed && !p.frozen[l.UID] && !p.gone[l.UID] && !p.wanted[p.id(l.UID, &l.Attachment)] {
			all[at] = l
		}
	}
	return all
}

// linkVerb says what a wanted attachment needs, or nothing. old is nil where it has no link.
func linkVerb(old *Link, revision string, a *Attachment) Verb {
	if old == nil || old.Severed {
		return Attach
	}
	if old.Revision == revision && old.Attachment == *a && !old.Elsewhere {
		return ""
	}
	h, ok := hook.Lookup(a.Hook)
	if ok && h.IsFilter() && (old.Attachment.Priority != a.Priority || old.Attachment.Rank() != a.Rank()) {
		return Move
	}
	if ok && h.Replace == hook.ByLinkUpdate {
		return Update
	}
	if old.Revision == revision && old.Attachment.Instance == a.Instance && old.Attachment.runsAs(*a) && !old.Elsewhere {
		return Update
	}
	return Overlap
}

// leftovers detaches the links that are not wanted.
func (p *planner) leftovers() {
	for i := range p.have.Links {
		l := &p.have.Links[i]
		id := p.id(l.UID, &l.Attachment)
		if p.frozen[l.UID] || p.gone[l.UID] || p.wanted[id] || p.replaced[id] {
			continue
		}
		p.add(Action{Verb: Detach, UID: l.UID, Revision: l.Revision, Attachment: l.Attachment})
	}
}

// chains sets the XDP chain of every interface that has one or is to have one, but
// those that endings set.
func (p *planner) chains() { p.setChains(false) }

// setChains sets the chains that only end something, or the others.
func (p *planner) setChains(ending bool) {
	found := map[Device]Chain{}
	for _, c := range p.have.Chains {
		found[c.Device] = c
	}
	for _, c := range p.wantedChains {
		old, ok := found[c.Device]
		if ok && !old.Severed && slices.Equal(old.Members, c.Members) && !p.abandoned(old, c) {
			continue
		}
		if len(c.Members) == 0 && !ok || onlyEnds(old, c) != ending {
			continue
		}
		p.add(Action{Verb: SetChain, Device: c.Device, Interface: c.Interface, Members: c.Members})
	}
}

// onlyEnds reports whether all members of a chain run already, as they are to.
func onlyEnds(old, wanted Chain) bool {
	return len(wanted.Members) == 0 || !old.Severed && len(Changed(wanted.Members, old.Members)) == 0
}

// abandoned reports whether a chain is not wanted any more that runs something else
// than it was given, or something of which nothing is known.
func (p *planner) abandoned(old, wanted Chain) bool {
	if len(wanted.Members) > 0 {
		return false
	}
	return len(old.Given) > 0 || old.Unknown && !slices.ContainsFunc(old.Users, func(uid string) bool { return p.frozen[uid] })
}

// labelsOf are the labels of interfaces, by device.
func labelsOf(interfaces []Interface) map[Device]string {
	labels := make(map[Device]string, len(interfaces))
	for _, i := range interfaces {
		labels[i.Device] = i.Label()
	}
	return labels
}

// drops removes revisions that nothing runs, and applications that are gone.
func (p *planner) drops() {
	keep := map[string]map[string]bool{}
	mark := func(uid, revision string) {
		if keep[uid] == nil {
			keep[uid] = map[string]bool{}
		}
		keep[uid][revision] = true
	}
	for _, app := range p.want.Applications {
		mark(app.UID, app.Revision)
	}
	for uid, revisions := range p.have.Revisions {
		if p.frozen[uid] {
			for _, r := range revisions {
				mark(uid, r)
			}
		}
	}
	for _, uid := range p.uids() {
		for _, r := range p.have.Revisions[uid] {
			if !keep[uid][r] {
				p.add(Action{Verb: Drop, UID: uid, Revision: r})
			}
		}
		if p.gone[uid] {
			p.add(Action{Verb: Forget, UID: uid})
		}
	}
}

// uids are those that have anything in the kernel.
func (p *planner) uids() []string {
	var uids []string
	for uid := range p.have.Revisions {
		uids = append(uids, uid)
	}
	for _, l := range p.have.Links {
		uids = append(uids, l.UID)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

func sorted(apps []Application) []Application {
	apps = slices.Clone(apps)
	slices.SortFunc(apps, func(a, b Application) int {
		return cmp.Or(
			cmp.Compare(a.Identity.Namespace, b.Identity.Namespace),
			cmp.Compare(a.Identity.Name, b.Identity.Name),
			cmp.Compare(a.UID, b.UID),
		)
	})
	return apps
}

func set(list []string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, s := range list {
		m[s] = true
	}
	return m
}
