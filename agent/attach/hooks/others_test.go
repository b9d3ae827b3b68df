package hooks_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// another is a program of another tool, which lets all pass and ends the chain; its id.
func another(t *testing.T, name string, kind ebpf.ProgramType) (*ebpf.Program, uint32) {
	t.Helper()
	at, verdict := ebpf.AttachNone, int32(0)
	if kind == ebpf.XDP {
		at, verdict = ebpf.AttachXDP, 2
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: kind, AttachType: at, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return p, uint32(id)
}

// attachAnother attaches a program of another tool to TCX, and returns its id.
func attachAnother(t *testing.T, name, iface string, at ebpf.AttachType, anchor link.Anchor) (uint32, link.Link) {
	t.Helper()
	p, id := another(t, name, ebpf.SchedCLS)
	l, err := link.AttachTCX(link.TCXOptions{Interface: world.Index(t, iface), Program: p, Attach: at, Anchor: anchor})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return id, l
}

// counting counts packets on a side of an interface.
func counting(w *world.World, name, hook, iface string) intent.Payload {
	_, side, _ := strings.Cut(hook, "/")
	return w.Intent(name, "tcx_count", v1alpha1.Program{Name: "count_" + side, Attach: world.On(hook, iface)})
}

// shown are the chains as lines: the hook, and what runs there in its order.
func shown(t *testing.T, a *agent.Agent) []string {
	t.Helper()
	chains, err := a.Chains()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, c := range chains {
		line := c.Interface + " " + c.Hook + ":"
		for _, m := range c.Members {
			if m.Unmanaged {
				line += " [" + m.Program + "]"
			} else {
				line += " " + m.Application
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// conditionOf is the message of an application's only condition.
func conditionOf(a *agent.Agent, name string) string {
	return world.StatusOf(a, name).Conditions[0].Message
}

func TestProgramsOfOthersAreShownWhereTheyRun(t *testing.T) {
	need.Kernel(t)
	world.NeedLink(t, "tcx/ingress")
	w := world.New(t)
	world.Veth(t, "ot0", "ot1")
	first, _ := attachAnother(t, "cil_from_netdev", "ot0", ebpf.AttachTCXIngress, nil)
	xdp, _ := another(t, "cil_xdp_entry", ebpf.XDP)
	x, err := link.AttachXDP(link.XDPOptions{Program: xdp, Interface: world.Index(t, "ot0")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	a, _ := w.Start()
	team := world.Tenant(counting(w, "theirs", "tcx/ingress", "ot0"), "team-a", "theirs", 1, 600)
	w.Must(a, counting(w, "ours", "tcx/ingress", "ot0"), team, counting(w, "out", "tcx/egress", "ot0"), counting(w, "filter", "tc/ingress", "ot0"))
	_, _ = attachAnother(t, "cil_later", "ot0", ebpf.AttachTCXIngress, link.Tail())

	l := world.LinkOf(t, a, "ours")
	named := fmt.Sprintf("behind cil_from_netdev (id %d), which can end the chain", first)
	if diff := cmp.Diff([]string{named}, l.Notes()); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	if notes := world.LinkOf(t, a, "out").Notes(); len(notes) > 0 {
		t.Errorf("egress has notes: %v", notes)
	}
	if got, want := conditionOf(a, "ours"), "every program runs; tcx/ingress on ot0: behind cil_from_netdev, which can end the chain"; got != want {
		t.Errorf("its condition says %q, want %q", got, want)
	}
	if state, message := world.StatusOf(a, "ours").NodeState(); state != v1alpha1.NodeLoaded || !strings.Contains(message, "behind cil_from_netdev,") {
		t.Errorf("the node reports %s %q", state, message)
	}
	if got := conditionOf(a, "theirs"); strings.Contains(got, "cil") || !strings.Contains(got, "tcx/ingress on ot0: behind a program of the node, which") {
		t.Errorf("the condition of a team says %q", got)
	}
	want := []string{"ot0 xdp: [cil_xdp_entry]", "ot0 tcx/ingress: [cil_from_netdev] ours team-a/theirs [cil_later]",
		"ot0 tc/ingress: filter", "ot0 tcx/egress: out"}
	if diff := cmp.Diff(want, shown(t, a)); diff != "" {
		t.Errorf("chains (-want +got):\n%s", diff)
	}

	// All of TCX comes before clsact, and what comes later is seen by the next look.
	_, _ = attachAnother(t, "first_of_all", "ot0", ebpf.AttachTCXIngress, link.Head())
	world.Looks(t, a)
	if got := world.LinkOf(t, a, "ours").Notes(); len(got) != 1 || !strings.Contains(got[0], "behind first_of_all (id ") ||
		!strings.Contains(got[0], " and cil_from_netdev (id ") || !strings.HasSuffix(got[0], "each of which can end the chain") {
		t.Errorf("behind two it says %v", got)
	}
	if got := world.LinkOf(t, a, "filter").Notes(); len(got) != 1 || !strings.Contains(got[0], "cil_later") {
		t.Errorf("a filter says %v", got)
	}
}

// TestFiltersOfOthersAreShownByTheirPrefs also where a kernel without TCX has filters in its place.
func TestFiltersOfOthersAreShownByTheirPrefs(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "of0", "of1")
	qdisc := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: world.Index(t, "of0"), Handle: netlink.MakeHandle(0xffff, 0),
		Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact"}
	world.Must(t, netlink.QdiscAdd(qdisc))
	add := func(name string, pref uint16) uint32 {
		p, id := another(t, name, ebpf.SchedCLS)
		world.Must(t, netlink.FilterAdd(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: world.Index(t, "of0"), Handle: 1,
			Parent: netlink.HANDLE_MIN_INGRESS, Priority: pref, Protocol: 0x0300}, Fd: p.FD(), Name: name, DirectAction: true}))
		return id
	}
	id := add("before", 1)
	add("after", 40000)
	a, _ := w.Start()
	w.Must(a, counting(w, "ours", "tc/ingress", "of0"))
	if got, want := world.LinkOf(t, a, "ours").Notes(), []string{fmt.Sprintf("behind before (id %d), which can end the chain", id)}; !slices.Equal(got, want) {
		t.Errorf("notes %q, want %q", got, want)
	}
	if got, want := shown(t, a), []string{"of0 tc/ingress: [before] ours [after]"}; !slices.Equal(got, want) {
		t.Errorf("chains %q, want %q", got, want)
	}
}
