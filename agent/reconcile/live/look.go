package live

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/others"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/unrun"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/hook"
)

// Look is who reads in one reconcile what applications have: by the methods of Open what is open, which changes while the
// reconcile acts on the Set, and by State what the kernel said of that when Observe asked. State and facts are copies: of
// what changes afterwards, they have what a method of the Look noted.
type Look struct {
	*Open
	// Set is what changes.
	Set *Set

	state plan.State
	// seen are those of state.Links, one each.
	seen []*pins.Link
	// facts of links by their pin.
	facts map[string]pins.Facts
	// unreadable are the pins whose links could not be read.
	unreadable map[string]bool
	// Others reads which programs of others run next to Skep's, and Unrun which of Skep's have never run.
	Others *others.Round
	Unrun  *unrun.Round
	// found finds what is in state; nil until it is asked for, and once that has other links or chains.
	found *index
}

// Look begins to look. The State is empty until Observe, or Saw.
func (s *Set) Look() *Look {
	return &Look{Open: &s.Open, Set: s, Others: s.readOthers(nil), Unrun: s.unrun.Begin(nil), facts: map[string]pins.Facts{}, unreadable: map[string]bool{}}
}

// Observe asks the kernel about every link and chain. interfaces are those of the node, and
// namespaces those that they are in.
func (l *Look) Observe(interfaces []plan.Interface, namespaces *netns.Table) {
	l.seen, l.found = nil, nil
	l.Others, l.Unrun = l.Set.readOthers(namespaces), l.Set.unrun.Begin(namespaces)
	l.state = plan.State{Interfaces: interfaces, Revisions: map[string][]string{}}
	for uid := range l.revisions {
		// Without a revision, the application's directory is left.
		l.state.Revisions[uid] = slices.Sorted(maps.Keys(l.revisions[uid]))
	}
	for _, uid := range slices.Sorted(maps.Keys(l.Open.links)) {
		links := l.Open.links[uid]
		if _, known := l.state.Revisions[uid]; !known {
			l.state.Revisions[uid] = nil
		}
		for _, key := range slices.Sorted(maps.Keys(links)) {
			one := links[key]
			facts := l.inspect(one.Path, one.Link)
			l.seen = append(l.seen, one)
			l.state.Links = append(l.state.Links, plan.Link{UID: one.UID, Attachment: one.Attachment,
				Revision: l.RevisionOf(one, facts), Severed: facts.Severed, Elsewhere: one.IsElsewhere(facts)})
		}
	}
	l.observeOrder()
	l.observeChains()
	l.Set.keys.bound(len(l.state.Links) + len(l.state.Chains))
	l.found = nil
}

// Saw has a State that was observed, which may be a part of one, in the namespaces.
func (l *Look) Saw(s plan.State, namespaces *netns.Table) {
	l.state, l.found, l.Others, l.Unrun = s, nil, l.Set.readOthers(namespaces), l.Set.unrun.Begin(namespaces)
}

// State is what Observe read. The caller changes nothing of it.
func (l *Look) State() plan.State { return l.state }

// inspect asks the kernel about a link. One that cannot be read ends no reconcile: it
// runs nothing that is known, and what is to be done about that can fail alone.
func (l *Look) inspect(pin string, one pins.Held) pins.Facts {
	facts, err := pins.Inspect(one)
	if err != nil {
		if !isPartial(err) {
			l.Set.log.Error("look at link; others are not affected", "pin", pin, "error", err)
		}
		l.unreadable[pin] = true
		return pins.Facts{}
	}
	l.facts[pin] = facts
	return facts
}

// observeOrder reads the place of each link on an ordered hook.
func (l *Look) observeOrder() {
	failed := map[others.Place]bool{}
	for i := range l.state.Links {
		one := &l.state.Links[i]
		if h, ok := hook.Lookup(one.Attachment.Hook); !ok || !h.TakesPriority() || one.Severed {
			continue
		}
		pin := l.seen[i].Path
		if l.unreadable[pin] {
			one.Unplaced = true
			continue
		}
		facts := l.facts[pin]
		if facts.Filter.Copies > 0 {
			one.Position, one.Unplaced = int(facts.Filter.Pref), facts.Filter.Pref == 0
			continue
		}
		at := others.Of(one.Attachment)
		order, err := l.Others.Order(at)
		if err != nil && !errors.Is(err, attach.ErrTarget) {
			if !failed[at] && !errors.Is(err, netns.ErrUnknown) {
				l.Set.log.Error("read the order of programs; they stay as they are", "hook", one.Attachment.Hook, "interface", one.Attachment.Target.String(), "error", err)
			}
			failed[at], one.Unplaced = true, true
			continue
		}
		one.Position = slices.IndexFunc(order, func(p attach.Placed) bool { return p.Link == facts.ID })
		one.Unplaced = facts.ID == 0
	}
}

// RevisionOf names the revision whose program a link runs.
func (l *Look) RevisionOf(one *pins.Link, facts pins.Facts) string {
	for name, r := range l.revisions[one.UID] {
		if instance, ok := r.Instance(facts.Program); ok && instance == one.Attachment.Instance {
			return name
		}
	}
	return ""
}

func (l *Look) observeChains() {
	for d, c := range l.chains {
		facts := l.inspect(l.Set.pins.ChainPath(d), c.Link)
		one := plan.Chain{Device: d, Severed: facts.Severed}
		if c.Mode = ""; !facts.Severed {
			c.Mode = l.Interface(d).XDPMode
		}
		// A program somebody else put under the link is not the members'.
		switch {
		case c.Version == nil:
			one.Unknown, one.Users = true, l.usersOf(facts.Program)
		case facts.Program != 0 && l.programID(c.Version) == facts.Program:
			one.Members, one.Off = c.Version.Members, l.switchedOff(c.Version)
		default:
			one.Given = c.Version.Members
		}
		l.state.Chains = append(l.state.Chains, one)
	}
	slices.SortFunc(l.state.Chains, func(a, b plan.Chain) int { return a.Device.Compare(b.Device) })
}

// switchedOff are the members that a version has switched off.
func (l *Look) switchedOff(v *pins.ChainVersion) []plan.Member {
	if err := v.ReadSwitches(); err != nil {
		l.Set.log.Error("look which members of a chain are switched off", "error", err)
	}
	return v.Off()
}

// usersOf are the applications whose program a link runs, or whose maps that program
// uses: all, where the kernel does not tell.
func (l *Look) usersOf(program ebpf.ProgramID) []string {
	used, err := pins.MapsOf(program)
	if err != nil {
		l.Set.log.Error("look whose program a chain runs that is not pinned", "error", err)
	}
	var uids []string
	// Who only has a map from another application is none where that one has it.
	for _, taken := range []bool{false, true} {
		for uid, revisions := range l.revisions {
			for _, r := range revisions {
				if _, own := r.Instance(program); own || err != nil || r.HasMap(used, taken) {
					uids = append(uids, uid)
					break
				}
			}
		}
		if len(uids) > 0 {
			break
		}
	}
	slices.Sort(uids)
	return uids
}

// programID is the kernel's id of a chain's program, 0 where it cannot be read.
func (l *Look) programID(v *pins.ChainVersion) ebpf.ProgramID {
	id, err := v.ProgramID()
	if err != nil {
		l.Set.log.Error("look at chain", "error", err)
	}
	return id
}

// Facts asks the kernel about a link, once a reconcile where it is unchanged.
func (l *Look) Facts(one *pins.Link) pins.Facts { return l.factsOf(one.Path, one.Link) }

// ChainFacts is like Facts, of the link of a chain.
func (l *Look) ChainFacts(c *pins.Chain) pins.Facts {
	return l.factsOf(l.Set.ChainPin(c.Device), c.Link)
}

func (l *Look) factsOf(pin string, one pins.Held) pins.Facts {
	if f, ok := l.facts[pin]; ok && f.ID != 0 || l.unreadable[pin] {
		return f
	}
	f, err := pins.Inspect(one)
	if err != nil && !isPartial(err) {
		l.Set.log.Error("look at link", "pin", pin, "error", err)
	}
	return f
}

// Seen returns the facts of a link that Observe read.
func (l *Look) Seen(pin string) pins.Facts { return l.facts[pin] }

// IsUnreadable reports whether a link could not be read.
func (l *Look) IsUnreadable(pin string) bool { return l.unreadable[pin] }

// HasUnreadable reports whether any link could not be read.
func (l *Look) HasUnreadable() bool { return len(l.unreadable) > 0 }

// NoteSevered notes of each link that runs nothing any more what its info does not tell.
func (l *Look) NoteSevered(runs func(*plan.Link, pins.Facts) bool) {
	for i := range l.state.Links {
		one := &l.state.Links[i]
		pin := l.seen[i].Path
		if facts := l.facts[pin]; facts.ID != 0 && !one.Severed && !runs(one, facts) {
			one.Severed, facts.Severed = true, true
			l.facts[pin] = facts
		}
	}
}

// ForgetEnded takes out of the State what is not open any more of links that isGone names and of
// chains: the kernel has confirmed that it ended.
func (l *Look) ForgetEnded(isGone func(uid string) bool) {
	open, links := l.seen[:0], l.state.Links[:0]
	for i, one := range l.state.Links {
		if isGone(one.UID) && l.Link(one.UID, one.Attachment.Key()) == nil {
			continue
		}
		open, links = append(open, l.seen[i]), append(links, one)
	}
	l.seen, l.state.Links, l.found = open, links, nil
	l.state.Chains = slices.DeleteFunc(l.state.Chains, func(c plan.Chain) bool { return l.chains[c.Device] == nil })
}

// Move gives a link the name of another attachment.
func (l *Look) Move(one *pins.Link, to plan.Attachment) error {
	before := *one
	if err := l.Set.pins.MoveLink(one, to); err != nil {
		return err
	}
	delete(l.Open.links[one.UID], before.Attachment.Key())
	l.Set.PutLink(one)
	l.Changed(before.Path)
	l.Changed(one.Path)
	return nil
}

// Changed forgets the facts of a link that is another now.
func (l *Look) Changed(pin string) { delete(l.facts, pin) }

// index finds what is in a state.
type index struct {
	interfaces, chains map[plan.Device]int
	// links and members are by uid; those of chains are in the order of the chains.
	links   map[string][]*plan.Link
	members map[string][]plan.Member
}

// find returns what finds things in the state.
func (l *Look) find() *index {
	if l.found != nil {
		return l.found
	}
	l.found = &index{interfaces: map[plan.Device]int{}, chains: map[plan.Device]int{}, links: map[string][]*plan.Link{}, members: map[string][]plan.Member{}}
	for i, one := range l.state.Interfaces {
		l.found.interfaces[one.Device] = i
	}
	for i := range l.state.Links {
		one := &l.state.Links[i]
		l.found.links[one.UID] = append(l.found.links[one.UID], one)
	}
	for i, c := range l.state.Chains {
		l.found.chains[c.Device] = i
		for _, m := range c.Members {
			l.found.members[m.UID] = append(l.found.members[m.UID], m)
		}
	}
	return l.found
}

// SeenLinks returns the links of an application that Observe read, in the order of their keys.
func (l *Look) SeenLinks(uid string) []*plan.Link { return l.find().links[uid] }

// PutRevision adds a revision that is pinned. Where it was loaded before, links run that, which is no revision any more.
func (l *Look) PutRevision(r *loader.Revision) {
	again := l.Revision(r.UID, r.Name) != nil
	l.Set.PutRevision(r)
	l.Others.ForgetOurs()
	if !slices.Contains(l.state.Revisions[r.UID], r.Name) {
		l.state.Revisions[r.UID] = append(l.state.Revisions[r.UID], r.Name)
	}
	if !again {
		return
	}
	for _, one := range l.SeenLinks(r.UID) {
		held := l.Link(r.UID, one.Attachment.Key())
		one.Revision = l.RevisionOf(held, l.facts[held.Path])
	}
}

// IsAttached reports whether a link or chain of an application has something at an attachment.
func (l *Look) IsAttached(uid string, a plan.Attachment) bool {
	if a.Hook == plan.XDP {
		return slices.ContainsFunc(l.GivenTo(a.Target.Device()), func(m plan.Member) bool { return m.UID == uid && m.Program == a.Program })
	}
	one := l.Link(uid, l.KeyOf(&a))
	return one != nil && !l.facts[one.Path].Severed
}

// SeenChain returns the interface's chain that runs; nil where none does.
func (l *Look) SeenChain(d plan.Device) *plan.Chain {
	if i, ok := l.find().chains[d]; ok && !l.state.Chains[i].Severed {
		return &l.state.Chains[i]
	}
	return nil
}

// Runs reports whether any link or chain ran the revision.
func (l *Look) Runs(uid, revision string) bool {
	return slices.ContainsFunc(l.SeenLinks(uid), func(one *plan.Link) bool { return one.Revision == revision }) ||
		slices.ContainsFunc(l.find().members[uid], func(m plan.Member) bool { return m.Revision == revision })
}

// RunsBeside reports whether a link or chain of an application ran another revision than one.
func (l *Look) RunsBeside(uid, revision string) bool {
	return slices.ContainsFunc(l.SeenLinks(uid), func(one *plan.Link) bool { return one.Revision != revision && !one.Severed }) ||
		slices.ContainsFunc(l.find().members[uid], func(m plan.Member) bool { return m.Revision != revision })
}

// BaseRevision returns the revision whose maps a new one goes on with: the one that
// links run, or the only one there is; nil where there is none.
func (l *Look) BaseRevision(uid string) *loader.Revision {
	for _, one := range l.SeenLinks(uid) {
		if one.Revision != "" {
			return l.Revision(uid, one.Revision)
		}
	}
	for _, m := range l.find().members[uid] {
		if r := l.Revision(uid, m.Revision); r != nil {
			return r
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.revisions[uid])) {
		return l.Revision(uid, name)
	}
	return nil
}

// RevisionName names the application's BaseRevision; empty where there is none.
func (l *Look) RevisionName(uid string) string {
	if r := l.BaseRevision(uid); r != nil {
		return r.Name
	}
	return ""
}

// Interface returns an interface; one that is not there has no name but its index.
func (l *Look) Interface(d plan.Device) plan.Interface {
	if i, ok := l.FindInterface(d); ok {
		return i
	}
	return plan.Interface{Device: d, Name: fmt.Sprintf("#%d", d.Index)}
}

// FindInterface returns an interface; false where it is not there.
func (l *Look) FindInterface(d plan.Device) (plan.Interface, bool) {
	i, ok := l.find().interfaces[d]
	if !ok {
		return plan.Interface{}, false
	}
	return l.state.Interfaces[i], true
}

// InterfaceName is the label of an interface.
func (l *Look) InterfaceName(d plan.Device) string { return l.Interface(d).Label() }
