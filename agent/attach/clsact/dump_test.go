package clsact

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestFiltersOfOthersThatAreAlikeAreReadAsOne has thousands of filters of a program at two prefs, which may be
// somebody's, or Skep's.
func TestFiltersOfOthersThatAreAlikeAreReadAsOne(t *testing.T) {
	need.Kernel(t)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	info, err := program.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "many0"}, PeerName: "many1"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = netlink.LinkDel(link) }()
	side := Side{Device: plan.Device{Index: link.Index}}
	const many = 1000
	err = netlink.QdiscAdd(qdisc(link.Index))
	for i := 0; i < 2*many && err == nil; i++ {
		one := filter(side, uint16(7+i%2*2000), 0)
		one.Fd, one.Name = program.FD(), "many"
		err = netlink.FilterAdd(one)
	}
	if err != nil {
		t.Fatal(err)
	}

	table := New(nil)
	all, err := table.read(side)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		all[i].handle = 0
	}
	// The kernel lists each pref, too.
	if diff := cmp.Diff([]entry{{place{pref: 7}, 0}, {place{pref: 7}, id}, {place{pref: 2007}, 0}, {place{pref: 2007}, id}}, all,
		cmp.AllowUnexported(entry{}, place{})); diff != "" {
		t.Error(diff)
	}
	table.Owner = func(is ebpf.ProgramID) (Owner, bool) { return Owner{}, is == id }
	if all, err = table.read(side); err != nil || len(all) != 2*many+2 {
		t.Errorf("of %d filters of Skep's at two prefs there are %d entries: %v", 2*many, len(all), err)
	}
}
