package clsact

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/bytecode/plain"
)

// Filter is a filter of Skep's. It stands for one attachment: where a kill left the filter
// twice, it is both.
type Filter struct {
	table   *Table
	side    Side
	band    Band
	owner   Owner
	name    string
	program *ebpf.Program
	// id is the program's; 0 where it was not asked for.
	id ebpf.ProgramID
}

// Facts are what the kernel says of a filter.
type Facts struct {
	// Program is what it runs, 0 where there is none.
	Program ebpf.ProgramID
	// Pref is 0 where the filter could not be looked at.
	Pref   uint16
	Handle uint32
	// Copies are how many filters there are.
	Copies int
}

// Request is one filter to be made.
type Request struct {
	Hook     string
	Device   plan.Device
	Priority int32
	Owner    Owner
	// Name is shown by tc(8).
	Name    string
	Program *ebpf.Program
	// Before and After are the filters of the same hook and interface that are to run before
	// the new one and behind it.
	Before, After []*Filter
}

// handle is that of every filter of Skep's: the one that cls_bpf gives the first filter of a
// pref.
const handle = 1

// tries bounds how often a place is looked for because others changed the filters meanwhile.
const tries = 8

// errFull: no pref is free.
var errFull = errors.New("every pref for the hook is taken")

// Restore returns the filter of an attachment that runs the program, or another version of it.
// The filter takes the program over. It is not ok where the hook has no filters.
func (t *Table) Restore(r Request) (*Filter, bool) {
	side, band, ok := Of(r.Hook, r.Device)
	if ok {
		t.side(side).likely[band.pref(r.Priority)] = true
	}
	return &Filter{table: t, side: side, band: band, owner: r.Owner, name: r.Name, program: r.Program}, ok
}

// Attach makes a filter, and takes former ones of its owner away. The error wraps unix.ENODEV
// where there is no such interface, and
// netns.ErrGone where there is no such network namespace.
func (t *Table) Attach(r Request) (*Filter, error) {
	program, err := plain.Of(r.Program.Clone())
	if err != nil {
		return nil, err
	}
	r.Program = program
	f, _ := t.Restore(r)
	if err = t.needQdisc(f.side); err == nil {
		err = f.attach(r)
	}
	if err != nil {
		return nil, errors.Join(err, t.tidy(r.Device), f.Close())
	}
	return f, nil
}

func (f *Filter) attach(r Request) error {
	var err error
	for range tries {
		if err = f.try(r); !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return err
}

// try looks for a place and takes it. It fails with EEXIST where another was faster.
func (f *Filter) try(r Request) error {
	all, err := f.table.list(f.side)
	if err != nil {
		return err
	}
	own, taken := map[uint16]bool{}, map[uint16]bool{}
	for _, e := range all {
		if f.is(e) {
			own[e.pref] = true
		} else if e.chain == 0 {
			taken[e.pref] = true
		}
	}
	before, after := at(r.Before, all), at(r.After, all)
	pref, moves, ok := f.band.place(r.Priority, slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)), own, taken)
	if !ok {
		return fmt.Errorf("prefs %d to %d of the interface: %w; delete filters that are not needed: `%s` lists them",
			f.band.first, f.band.last, errFull, f.table.command(r.Device, "tc filter show dev %s "+f.side.String()))
	}
	maps.Copy(before, after)
	for _, m := range moves {
		if err := before[m.from].move(m); err != nil {
			return err
		}
	}
	put := netlink.FilterAdd
	if own[pref] {
		put = netlink.FilterReplace
	}
	if err := f.put(put, pref, handle, f.program); err != nil {
		return err
	}
	return f.table.remove(f.side, all, func(e entry) bool { return f.is(e) && e.pref != pref })
}

// at are the prefs of filters in a list.
func at(filters []*Filter, all []entry) map[uint16]*Filter {
	found := map[uint16]*Filter{}
	for _, f := range filters {
		for _, e := range all {
			if f.is(e) {
				found[e.pref] = f
			}
		}
	}
	return found
}

// is reports whether an entry is this filter.
func (f *Filter) is(e entry) bool { return f.table.isOurs(e, f.owner, f.band) }

// put asks the kernel for the filter. A replacement is one step for packets
// (cls_bpf_change of net/sched/cls_bpf.c exchanges the program under RCU).
func (f *Filter) put(how func(netlink.Filter) error, pref uint16, handle uint32, program *ebpf.Program) error {
	one := filter(f.side, pref, handle)
	one.Fd, one.Name = program.FD(), f.name
	is := f.table.side(f.side)
	is.places[place{pref: pref, handle: handle}], is.isFresh = true, false
	switch err := f.table.within(f.side.Device, func() error { return how(one) }); {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("add filter: the %s filters of the interface are a block that it shares with others (`%s` shows it); attach to another interface: %w",
			f.side, f.table.command(f.side.Device, "tc qdisc show dev %s"), err)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("add filter: the kernel has no classifier for BPF programs (cls_bpf): %w: %w", ebpf.ErrNotSupported, err)
	case err != nil:
		return fmt.Errorf("add filter with pref %d: %w", pref, err)
	}
	return nil
}

// move gives the filter another pref: it runs twice until the former one is gone, and so
// misses no packet.
func (f *Filter) move(m move) error {
	if err := f.put(netlink.FilterAdd, m.to, handle, f.program); err != nil {
		return err
	}
	all, err := f.table.oursNow(f.side)
	if err != nil {
		return err
	}
	return f.table.remove(f.side, all, func(e entry) bool { return f.is(e) && e.pref == m.from })
}

// Facts returns what the kernel said at the last look. Where the filter's network namespace is
// not known now, it is taken to be as it was left, with no pref.
func (f *Filter) Facts() (Facts, error) {
	all, err := f.table.ours(f.side)
	if errors.Is(err, netns.ErrUnknown) {
		info, err := plain.Of(f.program.Info())
		if err != nil {
			return Facts{}, err
		}
		id, _ := info.ID()
		return Facts{Program: id, Copies: 1}, nil
	}
	var facts Facts
	for _, e := range all {
		if !f.is(e) {
			continue
		}
		if facts.Copies++; facts.Copies == 1 {
			facts.Program, facts.Pref, facts.Handle = e.program, e.pref, e.handle
		}
	}
	if facts.Copies == 0 && err != nil {
		return Facts{}, err
	}
	return facts, nil
}

// Update exchanges the program in one step, and takes copies away. It fails with
// unix.ENOLINK where there is no filter any more.
func (f *Filter) Update(program *ebpf.Program) error {
	all, err := f.table.oursNow(f.side)
	i := slices.IndexFunc(all, f.is)
	if i < 0 {
		return cmp.Or(err, error(unix.ENOLINK))
	}
	next, err := plain.Of(program.Clone())
	if err != nil {
		return err
	}
	if err := f.put(netlink.FilterReplace, all[i].pref, all[i].handle, next); err != nil {
		return errors.Join(err, next.Close())
	}
	return errors.Join(f.hold(next), f.table.remove(f.side, all[i+1:], f.is))
}

// Follow holds the program that the filter runs, where an update ended before it was pinned.
// It reports whether that is another than before. of returns the programs of the owner.
func (f *Filter) Follow(of func(ebpf.ProgramID) *ebpf.Program) (bool, error) {
	facts, err := f.Facts()
	if err != nil || facts.Copies == 0 {
		return false, err
	}
	program := of(facts.Program)
	if program == nil || f.Holds(facts.Program) {
		return false, nil
	}
	next, err := plain.Of(program.Clone())
	if err != nil {
		return false, err
	}
	return true, f.hold(next)
}

// hold takes the program over in the place of the one before.
func (f *Filter) hold(program *ebpf.Program) error {
	former := f.program
	f.program, f.id = program, 0
	return former.Close()
}

// Holds reports whether a program is the one that the filter was given last.
func (f *Filter) Holds(program ebpf.ProgramID) bool {
	if f.id == 0 {
		info, err := f.program.Info()
		if err != nil {
			return false
		}
		f.id, _ = info.ID()
	}
	return f.id != 0 && f.id == program
}

// Pin pins the program of the filter.
func (f *Filter) Pin(path string) error {
	// The library remembers where it pinned a program, and would move that pin.
	one, err := plain.Of(f.program.Clone())
	if err != nil {
		return err
	}
	return errors.Join(plain.Error(one.Pin(path)), one.Close())
}

// Unpin does nothing: no path is remembered.
func (f *Filter) Unpin() error { return nil }

// Detach deletes the filter, and the qdisc that was made for it where nothing uses it. It fails with
// *PartialError, beside deleting what was found, where a copy may be left.
func (f *Filter) Detach() error {
	all, err := f.table.oursNow(f.side)
	if err := errors.Join(f.table.remove(f.side, all, f.is), err); err != nil {
		return err
	}
	return f.table.tidy(f.side.Device)
}

// Close lets the program go. The filter stays.
func (f *Filter) Close() error { return f.program.Close() }
