package live

import (
	"errors"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/state/pins"
)

// Filters are the filters of tc that have no link which the kernel knows: those of a Set, and those that an
// earlier agent left.
type Filters struct {
	set *Set
	// swept are the network namespaces in which no filter is left of an earlier agent.
	swept map[uint64]bool
	// partlySwept are those that were not looked at whole, which was logged.
	partlySwept map[uint64]bool
}

// ownerOf says whose program has an id: that of a revision, or of a filter that was made.
func (f *Filters) ownerOf(id ebpf.ProgramID) (clsact.Owner, bool) {
	if id == 0 {
		// That of a filter of another kind.
		return clsact.Owner{}, false
	}
	for uid, revisions := range f.set.revisions {
		for _, r := range revisions {
			if instance, ok := r.Instance(id); ok {
				return clsact.OwnerOf(uid, instance), true
			}
		}
	}
	// Its revision was loaded once more, and the filter's turn has not come.
	for l := range f.set.Links() {
		if filter, ok := l.Link.(*clsact.Filter); ok && filter.Holds(id) {
			return clsact.OwnerOf(l.UID, l.Attachment.Instance), true
		}
	}
	return clsact.Owner{}, false
}

// adopt takes over the filters of the links, and takes away those that a kill left
// without a link in the agent's own network namespace: they were being made.
func (f *Filters) adopt() {
	f.set.pins.Filters.Owner, f.swept, f.partlySwept = f.ownerOf, map[uint64]bool{}, map[uint64]bool{}
	for l := range f.set.Links() {
		if l.Attachment.NetnsID == 0 {
			f.follow(l)
		}
	}
	f.Sweep([]uint64{0})
}

// Sweep begins a look at filters. It does the same for network namespaces that were not looked
// at yet, and for those that are gone. ids are those that are there.
func (f *Filters) Sweep(ids []uint64) {
	f.set.pins.Filters.Look()
	f.forgetSwept(ids)
	noted, err := f.set.pins.Filters.NotedNamespaces()
	if err := errors.Join(err, f.set.pins.Filters.TidyLeft()); err != nil {
		f.set.log.Error("look for filters that an earlier agent left", "error", err)
	}
	for _, id := range append(slices.Clone(ids), noted...) {
		if f.swept[id] {
			continue
		}
		err := f.sweepNamespace(id)
		if errors.Is(err, netns.ErrUnknown) {
			continue
		}
		if err != nil {
			if !isPartial(err) || !f.partlySwept[id] {
				f.set.log.Error("take away filters that an earlier agent left; it is tried again", "network namespace", id, "error", err)
			}
			f.partlySwept[id] = isPartial(err)
			continue
		}
		f.swept[id] = slices.Contains(ids, id)
	}
}

// isPartial reports whether an error is that a pod has too many filters to see one among them. The sweep logs
// that once, and what is to be done about a filter fails with it.
func isPartial(err error) bool { return errors.As(err, new(*clsact.PartialError)) }

// forgetSwept forgets the namespaces that are not there: another may get the number.
func (f *Filters) forgetSwept(ids []uint64) {
	isGone := func(id uint64, _ bool) bool { return id != 0 && !slices.Contains(ids, id) }
	maps.DeleteFunc(f.swept, isGone)
	maps.DeleteFunc(f.partlySwept, isGone)
}

// sweepNamespace takes away the filters without a link in one network namespace.
func (f *Filters) sweepNamespace(id uint64) error {
	known := map[clsact.Side]map[clsact.Owner]bool{}
	for l := range f.set.Links() {
		side, _, ok := clsact.Of(l.Attachment.Hook, l.Attachment.Target.Device())
		if !ok || l.Attachment.NetnsID != id {
			continue
		}
		if id != 0 {
			f.follow(l)
		}
		if known[side] == nil {
			known[side] = map[clsact.Owner]bool{}
		}
		known[side][clsact.OwnerOf(l.UID, l.Attachment.Instance)] = true
	}
	if len(f.set.revisions) == 0 {
		return f.set.pins.Filters.SweepQdiscs(id)
	}
	return f.set.pins.Filters.Sweep(id, func(side clsact.Side, owner clsact.Owner) bool { return known[side][owner] })
}

// follow pins the program that a filter runs, and logs where that fails.
func (f *Filters) follow(l *pins.Link) {
	if err := f.pinProgram(l); err != nil && !isPartial(err) {
		f.set.log.Error("pin the program of a filter", "pin", l.Path, "error", err)
	}
}

// pinProgram pins the program that a filter runs, where it is another than the pinned one.
func (f *Filters) pinProgram(l *pins.Link) error {
	filter, ok := l.Link.(*clsact.Filter)
	if !ok {
		return nil
	}
	other, err := filter.Follow(func(id ebpf.ProgramID) *ebpf.Program {
		for _, r := range f.set.revisions[l.UID] {
			if instance, ok := r.Instance(id); ok {
				return r.Programs[instance]
			}
		}
		return nil
	})
	if other {
		err = errors.Join(err, f.set.pins.Renew(l))
	}
	return err
}
