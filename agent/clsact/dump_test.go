package clsact

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/plan"
)

// inNamespace does something in a new network namespace.
func inNamespace(t *testing.T, do func() error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	if err := unix.Unshare(unix.CLONE_NEWNET); errors.Is(err, unix.EPERM) {
		t.Skip("SKIPPED: a network namespace of its own needs root")
	} else if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(do(), unix.Setns(int(own.Fd()), unix.CLONE_NEWNET)); err != nil {
		t.Fatal(err)
	}
}

// TestFiltersOfOthersThatAreAlikeAreReadAsOne has thousands of filters of a program at two prefs, which may be
// somebody's, or Skep's.
func TestFiltersOfOthersThatAreAlikeAreReadAsOne(t *testing.T) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if errors.Is(err, os.ErrPermission) {
		t.Skip("SKIPPED: programs are loaded by root")
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	info, err := program.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	const many = 1000
	inNamespace(t, func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "d"}, PeerName: "e"}); err != nil {
			return err
		}
		link, err := netlink.LinkByName("d")
		if err == nil {
			err = netlink.QdiscAdd(qdisc(link.Attrs().Index))
		}
		side := Side{Device: plan.Device{Index: link.Attrs().Index}}
		for i := 0; i < 2*many && err == nil; i++ {
			one := filter(side, uint16(7+i%2*2000), 0)
			one.Fd, one.Name = program.FD(), "d"
			err = netlink.FilterAdd(one)
		}
		if err != nil {
			return err
		}
		table := New(nil)
		all, err := table.read(side)
		for i := range all {
			all[i].handle = 0
		}
		// The kernel lists each pref, too.
		if diff := cmp.Diff([]entry{{pref: 7}, {7, 0, 0, id}, {pref: 2007}, {2007, 0, 0, id}}, all, cmp.AllowUnexported(entry{})); diff != "" {
			t.Error(diff)
		}
		table.Owner = func(is ebpf.ProgramID) (Owner, bool) { return Owner{}, is == id }
		own, ownErr := table.read(side)
		if len(own) != 2*many+2 {
			t.Errorf("of %d filters of Skep's at two prefs there are %d entries", 2*many, len(own))
		}
		return errors.Join(err, ownErr)
	})
}
