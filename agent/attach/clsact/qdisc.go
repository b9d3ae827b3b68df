package clsact

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach/rtnl"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
)

// qdisc is the clsact qdisc of an interface.
func qdisc(ifindex int) *netlink.GenericQdisc {
	return &netlink.GenericQdisc{QdiscType: "clsact",
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}}
}

// needQdisc makes the qdisc where the interface has none. The note is written first: after a
// kill, Sweep takes away what it names and nothing uses.
func (t *Table) needQdisc(s Side) error {
	noted, err := t.isNoted(s.Device)
	if err != nil {
		return err
	}
	if !noted {
		if err := t.notes.Note(s.Device); err != nil {
			return err
		}
	}
	err = t.within(s.Device, func() error { return netlink.QdiscAdd(qdisc(s.Device.Index)) })
	if err == nil {
		return nil
	}
	if !noted {
		if err := t.notes.Forget(s.Device); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(err, unix.EEXIST):
		return t.fits(s)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("add qdisc clsact: %w: %w", ebpf.ErrNotSupported, err)
	}
	return fmt.Errorf("add qdisc clsact: %w", err)
}

// fits checks the qdisc that somebody else made: one of the kind ingress has no filters for
// what goes out, and takes them for what comes in.
func (t *Table) fits(s Side) error {
	if !s.Egress {
		return nil
	}
	kind, err := t.kindOf(s.Device)
	if err == nil && kind != "clsact" {
		err = fmt.Errorf("the interface has a qdisc %s of another tool, which has no place for egress filters; "+
			"attach to another interface, or delete it with its filters: `%s`",
			kind, t.command(s.Device, "tc qdisc del dev %s "+kind))
	}
	return err
}

// kindOf is the kind of the qdisc in the place of clsact; empty where there is none. The kernel lists those of
// all interfaces of the network namespace: to ask for one alone would tell everybody of a change.
func (t *Table) kindOf(d plan.Device) (kind string, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
	request.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(d.Index)})
	limits, ok := t.limits(d, maxQdiscs)
	err = t.within(d, func() error {
		if !ok {
			return t.partial(d, "qdiscs", "tc qdisc show dev %s", 0)
		}
		err := rtnl.List(request, unix.RTM_NEWQDISC, limits, func(message []byte) error {
			one, err := kindAt(d, message)
			kind = cmp.Or(one, kind)
			return err
		})
		if cut := new(rtnl.PartialError); errors.As(err, &cut) {
			return t.partial(d, "qdiscs", "tc qdisc show dev %s", cut.Limit)
		}
		return err
	})
	if kind != "" || errors.Is(err, netns.ErrGone) {
		return kind, nil
	}
	if err != nil {
		return "", fmt.Errorf("look for the qdisc of interface %s: %w", d, err)
	}
	return "", nil
}

// kindAt is the kind of the qdisc that a message describes; empty unless it is in the place of clsact of
// the interface.
func kindAt(d plan.Device, message []byte) (kind string, err error) {
	if len(message) < nl.SizeofTcMsg {
		return "", errMalformed
	}
	is := nl.DeserializeTcMsg(message)
	if int(is.Ifindex) != d.Index || is.Parent != netlink.HANDLE_CLSACT {
		return "", nil
	}
	attributes, err := nl.ParseRouteAttr(message[nl.SizeofTcMsg:])
	for _, a := range attributes {
		if a.Attr.Type == nl.TCA_KIND {
			kind = unix.ByteSliceToString(a.Value)
		}
	}
	return kind, err
}

func (t *Table) isNoted(d plan.Device) (bool, error) {
	noted, err := t.notes.Noted()
	return slices.Contains(noted, d), err
}

// tidy deletes the qdisc that Skep made where it has no filter any more. One that others use is
// theirs from now on, unless filters of Skep's are among them. One with too many to tell is left as it is.
func (t *Table) tidy(d plan.Device) error {
	delete(t.untidy, d)
	if noted, err := t.isNoted(d); err != nil || !noted {
		return err
	}
	used := false
	for _, egress := range []bool{false, true} {
		all, err := t.list(Side{d, egress})
		if errors.As(err, new(*PartialError)) {
			t.tidyLater(d)
			return nil
		}
		if err != nil {
			return err
		}
		if slices.ContainsFunc(all, func(e entry) bool { _, ours := t.Owner(e.program); return ours }) {
			return nil
		}
		used = used || len(all) > 0
	}
	if !used {
		switch kind, err := t.kindOf(d); {
		case errors.As(err, new(*PartialError)):
			t.tidyLater(d)
			return nil
		case err != nil:
			return err
		case kind == "clsact":
			err := t.within(d, func() error { return netlink.QdiscDel(qdisc(d.Index)) })
			if err != nil && !errors.Is(err, netns.ErrGone) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("delete qdisc clsact of interface %s: %w", d, err)
			}
		}
	}
	return t.notes.Forget(d)
}

// tidyLater has TidyLeft tidy the interface.
func (t *Table) tidyLater(d plan.Device) {
	if t.untidy == nil {
		t.untidy = map[plan.Device]bool{}
	}
	t.untidy[d] = true
}

// Probe reports whether the kernel has the qdisc, and loads its module. It fails with
// ebpf.ErrNotSupported where it does not. That there is no classifier for BPF programs shows
// only when a filter is added.
func Probe() error {
	// Block 0 is rejected after the kernel looked for the kind and before it makes anything
	// (qdisc_block_indexes_set of net/sched/sch_api.c). Interface 1 is the loopback device.
	none, one := uint32(0), qdisc(1)
	one.IngressBlock = &none
	err := netlink.QdiscAdd(one)
	switch {
	case err == nil:
		return netlink.QdiscDel(qdisc(1))
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EEXIST):
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("qdisc clsact: %w: %w", ebpf.ErrNotSupported, err)
	}
	return fmt.Errorf("try qdisc clsact: %w", err)
}
