// Package clsact attaches programs to the traffic of an interface by filters of its clsact
// qdisc (cls_bpf with direct action), for the hooks tc/* and, where the kernel has no TCX, for
// tcx/*.
//
// No bpf_link holds a filter: it stays until somebody deletes it. A filter is Skep's where the
// kernel says that it runs a program of Skep's; a pref, handle or name that anybody can choose
// proves nothing. Filters of others are never changed. The package decides neither what
// attaches where nor what runs.
package clsact

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/netns"
	"github.com/skep-dev/skep/agent/plan"
)

// Side is one direction of the traffic of an interface.
type Side struct {
	Device plan.Device
	Egress bool
}

func (s Side) parent() uint32 {
	if s.Egress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

// String names the side as tc(8) does.
func (s Side) String() string {
	if s.Egress {
		return "egress"
	}
	return "ingress"
}

// Owner is what a filter runs: an instance of a program of an application.
type Owner struct{ UID, Instance string }

// Notes remember the interfaces whose clsact qdisc Skep made: the kernel does not tell.
type Notes interface {
	Noted() ([]plan.Device, error)
	Note(plan.Device) error
	Forget(plan.Device) error
}

// Table is the filters of interfaces. Its lists are those of the last look. The
// caller serializes all calls.
type Table struct {
	// Owner says whose program it is that has an id; not ok where it is not Skep's.
	Owner func(ebpf.ProgramID) (Owner, bool)
	// Namespaces are those of the node; nil where all interfaces are in the agent's own.
	Namespaces *netns.Table
	notes      Notes
	seen       map[Side][]entry
}

// New returns a table. Owner is to be set before it is used.
func New(notes Notes) *Table {
	return &Table{notes: notes, Owner: func(ebpf.ProgramID) (Owner, bool) { return Owner{}, false }}
}

// Look forgets what was read, so that each list that is needed is read again, once.
func (t *Table) Look() { t.seen = nil }

// entry is a filter as the kernel lists it. Filters of another kind have no program; where several of
// others are alike, it is the first.
type entry struct {
	pref    uint16
	handle  uint32
	chain   uint32
	program ebpf.ProgramID
}

// list returns the filters of a side in the order in which they run, as they were read last.
func (t *Table) list(s Side) ([]entry, error) {
	if all, ok := t.seen[s]; ok {
		return all, nil
	}
	all, err := t.read(s)
	if err != nil {
		return nil, err
	}
	if t.seen == nil {
		t.seen = map[Side][]entry{}
	}
	t.seen[s] = all
	return all, nil
}

// listAgain reads the filters of a side anew.
func (t *Table) listAgain(s Side) ([]entry, error) {
	delete(t.seen, s)
	return t.list(s)
}

// dumpTries bounds how often a list is asked for again because it changed while it was read.
const dumpTries = 5

// within calls do where the interface is.
func (t *Table) within(d plan.Device, do func() error) error { return t.Namespaces.Do(d.NetnsID, do) }

// read lists the filters of a side. With a network namespace, its filters went. Processes of a pod
// may make any number of filters, so of those of others that are alike, the first stands for all:
// what they are is not asked for, but which prefs they have.
func (t *Table) read(s Side) (all []entry, err error) {
	err = t.within(s.Device, func() (err error) {
		for range dumpTries {
			all, err = t.dump(s)
			if !errors.Is(err, netlink.ErrDumpInterrupted) {
				return err
			}
		}
		return err
	})
	if errors.Is(err, netns.ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s filters of interface %s: %w", s, s.Device, err)
	}
	return all, nil
}

// dump reads the filters of a side one by one, in the network namespace of the thread.
func (t *Table) dump(s Side) (all []entry, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETTFILTER, unix.NLM_F_DUMP)
	request.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(s.Device.Index), Parent: s.parent()})
	type kind struct {
		pref    uint16
		isFirst bool
		program ebpf.ProgramID
	}
	seen := map[kind]bool{}
	var malformed error
	err = request.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWTFILTER, func(message []byte) bool {
		e, parent, err := parse(message)
		malformed = err
		// A qdisc of the kind ingress lists its filters for either side
		// (ingress_tcf_block of net/sched/sch_ingress.c).
		if err != nil || s.Egress && parent != s.parent() {
			return err == nil
		}
		is := kind{e.pref, e.chain == 0, e.program}
		if _, ours := t.Owner(e.program); ours || !seen[is] {
			seen[is] = true
			all = append(all, e)
		}
		return true
	})
	return all, errors.Join(err, malformed)
}

// errMalformed is the error of a message that is too short.
var errMalformed = errors.New("the kernel's message about a filter is too short")

// parse reads a message about a filter, and the parent of the filter (struct tcmsg of rtnetlink.h).
func parse(message []byte) (e entry, parent uint32, err error) {
	if len(message) < nl.SizeofTcMsg {
		return entry{}, 0, errMalformed
	}
	about := nl.DeserializeTcMsg(message)
	e.pref, e.handle = uint16(about.Info>>16), about.Handle
	attributes, err := nl.ParseRouteAttr(message[nl.SizeofTcMsg:])
	if err != nil {
		return entry{}, 0, err
	}
	isBPF := false
	for _, a := range attributes {
		switch {
		case a.Attr.Type == nl.TCA_KIND:
			isBPF = unix.ByteSliceToString(a.Value) == "bpf"
		case a.Attr.Type == nl.TCA_CHAIN && len(a.Value) == 4:
			e.chain = binary.NativeEndian.Uint32(a.Value)
		case a.Attr.Type == nl.TCA_OPTIONS && isBPF:
			options, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return entry{}, 0, err
			}
			for _, o := range options {
				if o.Attr.Type == nl.TCA_BPF_ID && len(o.Value) == 4 {
					e.program = ebpf.ProgramID(binary.NativeEndian.Uint32(o.Value))
				}
			}
		}
	}
	return e, about.Parent, nil
}

// device is an interface by its index alone.
func device(ifindex int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
}

// filter is what the kernel is asked for at a pref and handle of a side.
func filter(s Side, pref uint16, handle uint32) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: s.Device.Index, Parent: s.parent(), Priority: pref, Handle: handle, Protocol: unix.ETH_P_ALL},
		Fd:          -1, DirectAction: true,
	}
}

// isOurs reports whether a filter is that of the owner at the hook's prefs.
func (t *Table) isOurs(e entry, o Owner, b Band) bool {
	whose, ok := t.Owner(e.program)
	return ok && whose == o && e.chain == 0 && b.has(e.pref)
}

// Sweep deletes Skep's filters that keep does not name, on all interfaces of a network
// namespace, and the qdiscs that they needed. Those are what a killed agent left.
func (t *Table) Sweep(netnsID uint64, keep func(Side, Owner) bool) error {
	var links []netlink.Link
	err := t.Namespaces.Do(netnsID, func() (err error) {
		links, err = netlink.LinkList()
		return err
	})
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, netns.ErrGone) {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		for _, egress := range []bool{false, true} {
			s := Side{plan.Device{NetnsID: netnsID, Index: l.Attrs().Index}, egress}
			errs = append(errs, t.sweep(s, keep))
		}
	}
	return errors.Join(append(errs, t.SweepQdiscs(netnsID))...)
}

// SweepQdiscs deletes the qdiscs in a network namespace that Skep made and nothing needs.
func (t *Table) SweepQdiscs(netnsID uint64) error {
	noted, err := t.notes.Noted()
	errs := []error{err}
	for _, d := range noted {
		if d.NetnsID == netnsID {
			errs = append(errs, t.tidy(d))
		}
	}
	return errors.Join(errs...)
}

// NotedNamespaces returns the network namespaces, but for the agent's own, where Skep made a
// qdisc.
func (t *Table) NotedNamespaces() ([]uint64, error) {
	noted, err := t.notes.Noted()
	var all []uint64
	for _, d := range noted {
		if d.NetnsID != 0 && !slices.Contains(all, d.NetnsID) {
			all = append(all, d.NetnsID)
		}
	}
	return all, err
}

func (t *Table) sweep(s Side, keep func(Side, Owner) bool) error {
	all, err := t.read(s)
	if err != nil {
		return err
	}
	return t.remove(s, all, func(e entry) bool {
		whose, ok := t.Owner(e.program)
		return ok && !keep(s, whose)
	})
}

// remove deletes the entries of a list that go, and makes sure that they went.
func (t *Table) remove(s Side, all []entry, goes func(entry) bool) error {
	var errs []error
	for _, e := range all {
		if goes(e) {
			f := filter(s, e.pref, e.handle)
			f.Chain = &e.chain
			errs = append(errs, t.within(s.Device, func() error { return netlink.FilterDel(f) }))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	// Somebody else may have deleted them, or the interface, meanwhile.
	left, err := t.listAgain(s)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(left, goes) {
		return fmt.Errorf("delete %s filter of interface %s: %w", s, s.Device, errors.Join(append(errs, errors.New("it is there still"))...))
	}
	return nil
}
