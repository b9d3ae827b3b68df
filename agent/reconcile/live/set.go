// Package live holds open what Skep has in the kernel of this node: revisions, links and
// chains with their pins, and links that were taken away and that the kernel has not
// ended. It decides nothing.
//
// Nothing leaves a Set before the kernel and the BPF file system confirmed that it is gone.
package live

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/agent/reconcile/others"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/unrun"
	"github.com/skep-dev/skep/agent/state/pins"
)

// The bounds of links that are made, and of those that are closed, beside the loop.
const (
	// maxOfOwner is how many of an owner there are at once, and maxCalls how many of all, beyond which each has one.
	maxOfOwner, maxCalls = 16, 64
	// slowCall is how long the kernel takes before the next owner's link is closed next to the one that hangs.
	slowCall = 2 * time.Second
)

// Set is everything that is open. The caller serializes all calls.
type Set struct {
	Open
	// Makings are the links that are being made, and Filters those that no link attaches.
	Makings Makings
	Filters Filters
	// Remnants are the links that were taken away, and Unused is what waits to be freed.
	Remnants Remnants
	Unused   Unused

	pins *pins.Store
	log  *slog.Logger
	// former are the programs of a revision by uid that was loaded once more. Links may
	// run them still.
	former map[string][]ebpf.ProgramID
	// unread are pins that could not be opened.
	unread []pins.Stray
	// names are those of programs of others, and unrun is which of Skep's did not run.
	names others.Names
	unrun unrun.Watch
	// keys are those of attachments that were asked for.
	keys keys
	// logged are the paths of the unmanaged files that were logged.
	logged map[string]bool
}

// New returns an empty set. remnantsFile keeps, for the next start, the links that were taken
// away and may run still. wake wakes the loop, from any goroutine, when a link was closed or made beside it.
func New(pins *pins.Store, wake func(), remnantsFile string, log *slog.Logger) *Set {
	// The kernel ends links one after the other, for all owners; to make them, each owner waits for its own.
	calls := queue.Options{MaxOfOwner: maxOfOwner, Max: maxCalls, Slow: slowCall, Log: log, Wake: wake,
		SlowMessage: "the kernel takes long to make or to close a link; others of its owner wait"}
	attaching := queue.New(calls)
	calls.Concurrent = 1
	unheld := func(string) {}
	s := &Set{pins: pins, log: log, Unused: Unused{Pace: NewPace(), log: log},
		Remnants: Remnants{Hold: unheld, file: remnantsFile, closing: queue.New(calls), log: log}}
	s.Makings = Makings{Hold: unheld, queue: attaching, log: log, end: s.Remnants.add}
	s.Filters.set, pins.Filters.Owner = s, s.Filters.ownerOf
	return s
}

// readOthers begins to read which programs of others run next to those of the Set.
func (s *Set) readOthers(namespaces *netns.Table) *others.Round {
	return others.New(others.Options{Ours: s.Owners, Namespaces: namespaces, Names: &s.names,
		Filters: s.OthersFilters})
}

// OthersFilters are the filters of others on a side of clsact.
func (s *Set) OthersFilters(side clsact.Side) []clsact.Other { return s.pins.Filters.Others(side) }

// Owners are the programs of revisions, and of chains and links that run or are being closed, with the UIDs of their applications; a
// chain's is empty.
func (s *Set) Owners() map[ebpf.ProgramID]string {
	all := map[ebpf.ProgramID]string{}
	for uid, revisions := range s.revisions {
		for _, r := range revisions {
			for _, id := range r.ProgramIDs() {
				all[id] = uid
			}
		}
		for _, id := range s.former[uid] {
			all[id] = uid
		}
	}
	for uid, remnants := range s.Remnants.byUID {
		for _, r := range remnants {
			all[r.Facts.Program] = uid
		}
	}
	for d, c := range s.chains {
		if facts, err := pins.Inspect(c.Link); err == nil {
			all[facts.Program] = ""
		} else {
			s.log.Debug("look whose the program of a chain is", "pin", s.pins.ChainPath(d), "error", err)
		}
	}
	return all
}

// Close closes everything. What is pinned runs on.
func (s *Set) Close() error {
	errs := []error{s.Makings.abandon()}
	for _, revisions := range s.revisions {
		for _, r := range revisions {
			errs = append(errs, r.Close())
		}
	}
	for l := range s.Links() {
		errs = append(errs, l.Close())
	}
	for _, c := range s.chains {
		errs = append(errs, c.Close())
	}
	s.Open, s.Remnants.byUID, s.unread = Open{}, nil, nil
	return errors.Join(errs...)
}

// PutRevision adds a revision that is pinned. It frees the same one, which was loaded before.
func (s *Set) PutRevision(r *loader.Revision) {
	if old := s.Revision(r.UID, r.Name); old != nil {
		put(&s.former, r.UID, old.ProgramIDs())
		s.Unused.Put("replaced revision", old, len(old.ProgramIDs()))
	}
	of := s.revisions[r.UID]
	put(&of, r.Name, r)
	put(&s.revisions, r.UID, of)
}

// put adds to a map, which it makes where it is nil.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// IsFormer reports whether a program is one of a revision of the application that was loaded
// once more.
func (s *Set) IsFormer(uid string, program ebpf.ProgramID) bool {
	return slices.Contains(s.former[uid], program)
}

// PutLink adds a link that is pinned.
func (s *Set) PutLink(l *pins.Link) {
	of := s.links[l.UID]
	put(&of, l.Attachment.Key(), l)
	put(&s.links, l.UID, of)
}

// PutChain adds the chain of a device, in the place of the one that is open. That is the caller's.
func (s *Set) PutChain(c *pins.Chain) { put(&s.chains, c.Device, c) }

// RemoveChain removes a chain, and frees what it ran.
func (s *Set) RemoveChain(c *pins.Chain) error {
	if err := s.pins.RemoveChain(c); err != nil {
		return err
	}
	delete(s.chains, c.Device)
	s.Unused.PutChain("detached chain", c.Version)
	return nil
}

// SpecID returns the entry of the arguments of a USDT probe at a target, among those of the
// application: that of a link with the same arguments, or the first one that no link has.
// Versions of the application may share the map, and a link that runs keeps its entry; 0 for
// other hooks.
func (s *Set) SpecID(uid string, t plan.Target) uint32 {
	if t.USDT == "" {
		return 0
	}
	taken := map[uint32]bool{}
	for l := range s.LinksOf(uid) {
		if l.Attachment.USDT != "" && l.Attachment.Arguments == t.Arguments {
			return l.SpecID
		}
		if l.Attachment.USDT != "" {
			taken[l.SpecID] = true
		}
	}
	for _, m := range s.Makings.byUID[uid] {
		if m.USDT != "" && m.Arguments == t.Arguments {
			return m.SpecID
		}
		if m.USDT != "" {
			taken[m.SpecID] = true
		}
	}
	var id uint32
	for taken[id] {
		id++
	}
	return id
}

// Adopt opens everything that is pinned. It notes and leaves out what cannot be read.
// nameOf names an application for the log.
func (s *Set) Adopt(nameOf func(uid string) string) error {
	s.Open, s.unread = Open{}, nil
	s.pins.Filters.Forget()
	if err := s.Remnants.restore(); err != nil {
		s.log.Error("what an earlier agent took away is not looked after", "error", err)
	}
	uids, err := s.pins.Applications()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		if err := s.adoptApplication(uid, nameOf); err != nil {
			return err
		}
	}
	s.Filters.adopt()
	devices, err := s.pins.ChainDevices()
	if err != nil {
		return err
	}
	for _, device := range devices {
		if err := s.adoptChain(device); err != nil {
			return err
		}
	}
	return nil
}

// adoptChain opens the chain of an interface.
func (s *Set) adoptChain(d plan.Device) error {
	c, strays, err := s.pins.OpenChain(d)
	if err != nil {
		return err
	}
	s.unread = append(s.unread, strays...)
	if c == nil {
		return nil
	}
	s.PutChain(c)
	// A kill between the swap and the drop leaves the old program pinned, and
	// one before the swap the new one, which is made again.
	if c.Version == nil {
		return nil
	}
	if err := s.pins.DropChainVersions(c); err != nil {
		// Every reconcile tries it again.
		s.log.Error("drop what a chain does not run any more", "error", err)
		return nil
	}
	c.Former = nil
	return nil
}

// adoptApplication opens what one application has pinned.
func (s *Set) adoptApplication(uid string, nameOf func(uid string) string) error {
	revisions, err := s.pins.Revisions(uid)
	if err != nil {
		return err
	}
	for _, name := range revisions {
		r, strays, err := s.pins.OpenRevision(uid, name)
		if err != nil {
			return err
		}
		s.unread = append(s.unread, strays...)
		s.PutRevision(r)
	}
	links, strays, err := s.pins.Links(uid)
	if err != nil {
		return err
	}
	s.unread = append(s.unread, strays...)
	for _, l := range links {
		s.PutLink(l)
	}
	if err := s.pins.DropEmpty(uid); err != nil {
		// The next start tries again: an empty directory runs nothing.
		s.log.Warn("remove the empty directories of an application", "application", nameOf(uid), "error", err)
	}
	return nil
}

// UnmanagedFiles looks for files among the pins that are not Skep's, or that could not
// be read when the agent started, by the UID they lie under. It logs each once.
func (s *Set) UnmanagedFiles() map[string][]string {
	strays, err := s.pins.Strays()
	if err != nil {
		s.log.Error("look among the pins", "error", err)
	}
	s.unread = slices.DeleteFunc(s.unread, func(one pins.Stray) bool { return !one.There() })
	all, found := map[string][]string{}, map[string]bool{}
	for _, one := range append(strays, s.unread...) {
		all[one.UID] = append(all[one.UID], one.String())
		found[one.Path] = true
		if s.logged[one.Path] {
			continue
		}
		if one.Err != nil {
			s.log.Error("cannot read a pin; what it held is made anew where an intent asks for it", "path", one.Path, "error", one.Err)
			continue
		}
		s.log.Warn("what lies among the pins is not Skep's, and is left alone", "path", one.Path)
	}
	s.logged = found
	return all
}

// Has reports whether anything that Skep made for an application is left.
func (s *Set) Has(uid string) bool {
	_, links := s.links[uid]
	_, revisions := s.revisions[uid]
	return links || revisions || len(s.Members(uid)) > 0 || len(s.Remnants.byUID[uid]) > 0 || len(s.Makings.byUID[uid]) > 0
}

// ChainPin returns the path of the pin of an interface's chain.
func (s *Set) ChainPin(d plan.Device) string { return s.pins.ChainPath(d) }

// RevisionPins returns the folder that has the pins of a revision; empty where it has none.
func (s *Set) RevisionPins(uid, revision string) string {
	if s.Revision(uid, revision) == nil {
		return ""
	}
	return s.pins.RevisionDir(uid, revision)
}

// Release closes what is not needed any more, and logs where that fails.
func (s *Set) Release(what string, c io.Closer) { release(s.log, what, c) }

// MayDrop reports whether the programs of a revision can be freed now. The first that cannot is before all others in the next
// second.
func (s *Set) MayDrop(uid, name string, now time.Time) bool {
	r := s.Revision(uid, name)
	return r == nil || s.Unused.mayDrop(uid, name, len(r.ProgramIDs()), now)
}

// DropRevision removes a revision that nothing runs any more, and returns it to be closed;
// nil where it is not open.
func (s *Set) DropRevision(uid, name string) (*loader.Revision, error) {
	if err := s.pins.DropRevision(uid, name); err != nil {
		return nil, err
	}
	r := s.Revision(uid, name)
	if r != nil {
		delete(s.revisions[uid], name)
		s.Unused.Pace.freed += len(r.ProgramIDs())
	}
	return r, nil
}

// Forget removes the last trace of an application.
func (s *Set) Forget(uid string) error {
	if err := s.pins.Forget(uid); err != nil {
		return err
	}
	delete(s.links, uid)
	delete(s.revisions, uid)
	delete(s.former, uid)
	return nil
}

// Repin makes again the pins that someone removed, and reports each that it made, or
// could not make, to done.
func (s *Set) Repin(done func(what string, made bool, err error)) {
	for _, revisions := range s.revisions {
		for _, r := range revisions {
			made, err := s.pins.Repin(r)
			done("revision "+r.Name, made > 0, err)
		}
	}
	for l := range s.Links() {
		made, err := s.pins.RepinLink(l)
		done("link of "+l.Attachment.Program, made, err)
	}
	for d, c := range s.chains {
		if c.Version == nil {
			continue
		}
		made, err := s.pins.RepinChain(c)
		done(fmt.Sprintf("chain of interface %s", d), made, err)
	}
}
