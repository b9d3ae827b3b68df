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
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach/rtnl"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
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

// Owner is what a filter runs: a program of an application, whatever version or instance of it.
type Owner struct{ UID, Program string }

// OwnerOf is the owner of an instance of an application's program.
func OwnerOf(uid, instance string) Owner { return Owner{uid, plan.FunctionOf(instance)} }

// Notes remember the interfaces whose clsact qdisc Skep made: the kernel does not tell.
type Notes interface {
	Noted() ([]plan.Device, error)
	Note(plan.Device) error
	Forget(plan.Device) error
}

// Table is the filters of interfaces. What it says of them is of the last look. The
// caller serializes all calls.
//
// Any number of filters in pods delays none: a filter is looked up where it was put or seen, and
// what is read beyond that has a bound.
type Table struct {
	// Owner says whose program it is that has an id; not ok where it is not Skep's.
	Owner func(ebpf.ProgramID) (Owner, bool)
	// Namespaces are those of the node; nil where all interfaces are in the agent's own.
	Namespaces *netns.Table
	// Clock says when a pod is read again. Unhurried has no bound: nothing waits.
	Clock     func() time.Time
	Unhurried bool
	notes     Notes
	// looks counts them, and left is how long the last one may yet work in pods.
	looks int
	left  time.Duration
	sides map[Side]*side
	pods  map[uint64]*pod
	// swept are the sides that are done in network namespaces that are not swept whole yet.
	swept map[uint64]map[Side]bool
	// untidy are the devices whose qdisc may be one that nothing needs.
	untidy map[plan.Device]bool
}

// New returns a table. Owner is to be set before it is used.
func New(notes Notes) *Table {
	return &Table{notes: notes, Owner: func(ebpf.ProgramID) (Owner, bool) { return Owner{}, false }, Clock: time.Now, looks: 1, left: podsBudget}
}

// Forget forgets what was seen, where others are Skep's than before.
func (t *Table) Forget() { t.sides, t.swept = nil, nil }

// entry is a filter as the kernel tells of it. Filters of another kind have no program; where several of
// others are alike, it is the first.
type entry struct {
	place
	program ebpf.ProgramID
}

// dumpTries bounds how often a list is asked for again because it changed while it was read.
const dumpTries = 5

// read lists the filters of a side. Processes of a pod may make any number of filters, so of those of
// others that are alike, the first stands for all: what they are is not asked for, but which prefs they
// have. Where the list is not whole, it fails with *PartialError beside those that were read.
func (t *Table) read(s Side) (all []entry, err error) {
	is := t.side(s)
	limits, ok := t.limits(s.Device, maxFilters)
	if is.cut != nil && (!ok || is.listedIn == t.looks) {
		return nil, is.cut
	}
	isOwnFault := t.isBounded(s.Device) && t.pod(s.Device.NetnsID).left <= t.left
	err = t.within(s.Device, func() (err error) {
		if !ok {
			return t.partialSide(s, 0)
		}
		is.listedIn = t.looks
		for range dumpTries {
			if all, err = t.dump(s, limits); !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
		}
		if cut := new(rtnl.PartialError); errors.As(err, &cut) {
			p := t.pod(s.Device.NetnsID)
			p.isCut = p.isCut || isOwnFault || cut.Limit > 0
			return t.partialSide(s, cut.Limit)
		}
		return err
	})
	if err != nil && !errors.As(err, new(*PartialError)) {
		return nil, fmt.Errorf("list %s filters of interface %s: %w", s, s.Device, err)
	}
	return all, err
}

// dump reads the filters of a side one by one, in the network namespace of the thread.
func (t *Table) dump(s Side, limits rtnl.Limits) (all []entry, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETTFILTER, unix.NLM_F_DUMP)
	request.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(s.Device.Index), Parent: s.parent()})
	type kind struct {
		pref              uint16
		isFirst, isFilter bool
		program           ebpf.ProgramID
	}
	seen := map[kind]bool{}
	err = rtnl.List(request, unix.RTM_NEWTFILTER, limits, func(message []byte) error {
		e, parent, err := parse(message)
		// A qdisc of the kind ingress lists its filters for either side
		// (ingress_tcf_block of net/sched/sch_ingress.c).
		if err != nil || s.Egress && parent != s.parent() {
			return err
		}
		// The kernel lists each pref that has filters, too, by the handle 0 (tcf_chain_dump of net/sched/cls_api.c).
		is := kind{e.pref, e.chain == 0, e.handle != 0, e.program}
		if _, ours := t.Owner(e.program); ours || !seen[is] {
			seen[is] = true
			all = append(all, e)
		}
		return nil
	})
	return all, err
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
// namespace, and the qdiscs that they needed. Those are what a killed agent left. Where it fails, the
// next one goes on with what is left.
func (t *Table) Sweep(netnsID uint64, keep func(Side, Owner) bool) error {
	devices, err := t.devices(netnsID)
	errs := []error{err}
	if t.swept == nil {
		t.swept = map[uint64]map[Side]bool{}
	}
	if t.swept[netnsID] == nil {
		t.swept[netnsID] = map[Side]bool{}
	}
	for _, d := range devices {
		for _, egress := range []bool{false, true} {
			s := Side{d, egress}
			if t.swept[netnsID][s] {
				continue
			}
			err := t.sweep(s, keep)
			t.swept[netnsID][s] = err == nil
			if errs = append(errs, err); err != nil && !t.hasTurn(d) {
				return errors.Join(errs...)
			}
		}
	}
	err = errors.Join(append(errs, t.SweepQdiscs(netnsID))...)
	if err == nil || errors.Is(err, netns.ErrGone) {
		delete(t.swept, netnsID)
	}
	return err
}

// devices lists those of a network namespace. Where that is not done whole, it fails beside some:
// those with a qdisc of Skep's are among them.
func (t *Table) devices(netnsID uint64) ([]plan.Device, error) {
	noted, err := t.notes.Noted()
	if err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(noted, func(d plan.Device) bool { return d.NetnsID != netnsID })
	limits, ok := t.limits(plan.Device{NetnsID: netnsID}, maxDevices)
	var links []netlink.Link
	err = t.within(plan.Device{NetnsID: netnsID}, func() (err error) {
		if !ok {
			return &rtnl.PartialError{}
		}
		links, err = rtnl.Links(limits)
		return err
	})
	for _, l := range links {
		if d := (plan.Device{NetnsID: netnsID, Index: l.Attrs().Index}); !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	if errors.Is(err, netlink.ErrDumpInterrupted) || errors.Is(err, netns.ErrGone) {
		return all, nil
	}
	if cut := new(rtnl.PartialError); errors.As(err, &cut) {
		one, _ := t.Namespaces.Lookup(netnsID)
		return all, &PartialError{What: "interfaces", In: one.In, Fix: t.Namespaces.Command(netnsID, "ip link show"), Limit: cut.Limit}
	}
	if err != nil {
		return all, fmt.Errorf("list interfaces: %w", err)
	}
	return all, nil
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

// TidyLeft deletes the qdiscs that nothing needs, among those of pods that could not be read in time.
func (t *Table) TidyLeft() error {
	var errs []error
	for d := range maps.Clone(t.untidy) {
		err := t.tidy(d)
		if err != nil {
			t.tidyLater(d)
		}
		if !errors.Is(err, netns.ErrUnknown) {
			errs = append(errs, err)
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
	all, err := t.ours(s)
	return errors.Join(t.remove(s, all, func(e entry) bool {
		whose, ok := t.Owner(e.program)
		return ok && !keep(s, whose)
	}), err)
}

// remove deletes the entries that go, and makes sure that they went.
func (t *Table) remove(s Side, all []entry, goes func(entry) bool) error {
	var errs []error
	var places []place
	for _, e := range all {
		if goes(e) {
			f := filter(s, e.pref, e.handle)
			f.Chain = &e.chain
			t.side(s).isFresh = false
			errs = append(errs, t.within(s.Device, func() error { return netlink.FilterDel(f) }))
			places = append(places, e.place)
		}
	}
	// Somebody else may have deleted them, or the interface, meanwhile.
	left, err := t.lookUp(s, places)
	if err != nil && !errors.Is(err, netns.ErrGone) {
		return err
	}
	if slices.ContainsFunc(left, goes) {
		return fmt.Errorf("delete %s filter of interface %s: %w", s, s.Device, errors.Join(append(errs, errors.New("it is there still"))...))
	}
	for _, at := range places {
		delete(t.side(s).places, at)
	}
	return nil
}
