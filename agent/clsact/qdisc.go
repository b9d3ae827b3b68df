package clsact

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// qdisc is the clsact qdisc of an interface.
func qdisc(ifindex int) *netlink.GenericQdisc {
	return &netlink.GenericQdisc{QdiscType: "clsact",
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}}
}

// needQdisc makes the qdisc where the interface has none. The note is written first: after a
// kill, Sweep takes away what it names and nobody uses.
func (t *Table) needQdisc(s Side) error {
	noted, err := t.isNoted(s.Ifindex)
	if err != nil {
		return err
	}
	if !noted {
		if err := t.notes.Note(s.Ifindex); err != nil {
			return err
		}
	}
	err = netlink.QdiscAdd(qdisc(s.Ifindex))
	if err == nil {
		return nil
	}
	if !noted {
		if err := t.notes.Forget(s.Ifindex); err != nil {
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
	kind, err := kindOf(s.Ifindex)
	if err == nil && s.Egress && kind != "clsact" {
		err = fmt.Errorf("the interface has a qdisc %s of somebody else, which has no place for egress filters; replace it with clsact (tc qdisc), or attach to another interface", kind)
	}
	return err
}

// kindOf is the kind of the qdisc in the place of clsact; empty where there is none.
func kindOf(ifindex int) (string, error) {
	all, err := netlink.QdiscList(device(ifindex))
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return "", fmt.Errorf("list qdiscs of interface %d: %w", ifindex, err)
	}
	for _, q := range all {
		if q.Attrs().Parent == netlink.HANDLE_CLSACT {
			return q.Type(), nil
		}
	}
	return "", err
}

func (t *Table) isNoted(ifindex int) (bool, error) {
	noted, err := t.notes.Noted()
	return slices.Contains(noted, ifindex), err
}

// tidy deletes the qdisc that Skep made where it has no filter any more. One that others use is
// theirs from now on, unless filters of Skep's are among them.
func (t *Table) tidy(ifindex int) error {
	if noted, err := t.isNoted(ifindex); err != nil || !noted {
		return err
	}
	used := false
	for _, egress := range []bool{false, true} {
		all, err := t.listAgain(Side{ifindex, egress})
		if err != nil {
			return err
		}
		if slices.ContainsFunc(all, func(e entry) bool { _, ours := t.Owner(e.program); return ours }) {
			return nil
		}
		used = used || len(all) > 0
	}
	if !used {
		switch kind, err := kindOf(ifindex); {
		case err != nil:
			return err
		case kind == "clsact":
			if err := netlink.QdiscDel(qdisc(ifindex)); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("delete qdisc clsact of interface %d: %w", ifindex, err)
			}
		}
	}
	return t.notes.Forget(ifindex)
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
