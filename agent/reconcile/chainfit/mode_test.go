package chainfit_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// bridge makes an interface whose driver runs no XDP program.
func bridge(t testing.TB, name string) *netlink.Bridge {
	t.Helper()
	b := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := netlink.LinkAdd(b); err != nil {
		t.Skipf("SKIPPED: the kernel has no bridge: %v", err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(b) })
	if err := netlink.LinkSetUp(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestXDPRunsInTheModeThatIsAskedFor(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	for mode, c := range map[v1alpha1.XDPMode]struct{ onVeth, onBridge v1alpha1.XDPMode }{
		"":                  {v1alpha1.XDPNative, v1alpha1.XDPGeneric},
		v1alpha1.XDPAuto:    {v1alpha1.XDPNative, v1alpha1.XDPGeneric},
		v1alpha1.XDPNative:  {v1alpha1.XDPNative, ""},
		v1alpha1.XDPGeneric: {v1alpha1.XDPGeneric, v1alpha1.XDPGeneric},
	} {
		t.Run("mode "+string(mode), func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "mo0", "mo1")
			bridge(t, "br0")
			a, stop := w.Start()
			w.Must(a, world.InMode(w, "v", "mo0", mode, 1))
			if l := world.LinkOf(t, a, "v"); l.XDPMode != c.onVeth || l.XDPReason != "" {
				t.Errorf("on a veth: %+v", l)
			}
			world.Send(t, "mo1", 3)
			world.Until(t, "the packets", 20*time.Second, func() bool { return world.Count(t, world.Counts(w, a, "v")) == 3 })
			err := w.Accept(a, world.InMode(w, "b", "br0", mode, 2))
			if c.onBridge == "" {
				if err == nil || !strings.Contains(err.Error(), "the driver runs no XDP programs") {
					t.Errorf("on a bridge: %v", err)
				}
				return
			}
			if l := world.LinkOf(t, a, "b"); err != nil || l.XDPMode != c.onBridge || (l.XDPReason != "") != (mode != v1alpha1.XDPGeneric) {
				t.Errorf("on a bridge: %+v, %v", l, err)
			}
			before := world.LinkOf(t, a, "b").XDPReason
			stop()
			a, _ = w.Start()
			w.Must(a)
			if v, b := world.LinkOf(t, a, "v"), world.LinkOf(t, a, "b"); v.XDPMode != c.onVeth || b.XDPMode != c.onBridge || v.XDPReason != "" || b.XDPReason != before {
				t.Errorf("after a restart: %+v, %+v; the reason was %q", v, b, before)
			}
		})
	}
}

// TestTheOlderOneChoosesTheMode: who asks for another is rejected alone, and who leaves it open
// follows.
func TestTheOlderOneChoosesTheMode(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	for older, younger := range map[v1alpha1.XDPMode]v1alpha1.XDPMode{v1alpha1.XDPNative: v1alpha1.XDPGeneric, v1alpha1.XDPGeneric: v1alpha1.XDPNative} {
		t.Run(string(older)+" first", func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "mo0", "mo1")
			a, _ := w.Start()
			w.Must(a, world.InMode(w, "old", "mo0", older, 1))
			before := world.LinkOf(t, a, "old")
			err := w.Accept(a, world.InMode(w, "young", "mo0", younger, 2))
			if want := "xdpMode: it asks for " + string(younger) + ", and application old, which has precedence on the interface, for " + string(older); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("the younger one is told %v", err)
			}
			_ = w.Accept(a, world.InMode(w, "open", "mo0", "", 3))
			if got := world.ChainOf(t, a); got != "old:count_packets open:count_packets" && got != "open:count_packets old:count_packets" {
				t.Errorf("chain %s", got)
			}
			if l := world.LinkOf(t, a, "old"); l.ID != before.ID || l.XDPMode != older {
				t.Errorf("link was %+v and is %+v", before, l)
			}
			// The younger one is told to wait until then.
			_ = w.Accept(a, w.Gone("old"))
			world.Until(t, "the younger one to get its mode", 20*time.Second, func() bool {
				return world.LinksOf(a)["young xdp mo0"] != 0 && world.LinkOf(t, a, "young").XDPMode == younger
			})
			if l := world.LinkOf(t, a, "open"); l.XDPMode != younger {
				t.Errorf("the open one runs in %+v", l)
			}
			world.Send(t, "mo1", 2)
			world.Until(t, "the packets", 20*time.Second, func() bool {
				return world.Count(t, world.Counts(w, a, "young")) == 2 && world.Count(t, world.Counts(w, a, "open")) == 2
			})
		})
	}
}

// TestTheClusterChoosesTheMode: a team's program that runs leaves an interface where one of the cluster asks for another mode,
// runs elsewhere, and is back when that has gone.
func TestTheClusterChoosesTheMode(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	for teams, clusters := range map[v1alpha1.XDPMode]v1alpha1.XDPMode{v1alpha1.XDPNative: v1alpha1.XDPGeneric, v1alpha1.XDPGeneric: v1alpha1.XDPNative} {
		t.Run("a team's is "+string(teams), func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "mo0", "mo1")
			world.Veth(t, "mo2", "mo3")
			o := w.Options()
			o.BackOff = agent.BackOff{First: 100 * time.Millisecond, Most: 100 * time.Millisecond}
			a := w.StartWith(o)
			team := world.Tenant(world.InMode(w, "theirs", "mo0", teams, 1), "team-a", "theirs", 1, 500)
			team.Programs[0].Attach[0].Interfaces.Names = []string{"mo0", "mo2"}
			open := world.Tenant(world.InMode(w, "open", "mo0", "", 1), "team-b", "open", 1, 600)
			w.Must(a, team, open)
			err := w.Accept(a, world.InMode(w, "firewall", "mo0", clusters, 2))
			if want := "theirs: place programs on xdp of mo0: xdpMode: it asks for " + string(teams) +
				", and a ClusterBpfApplication, which has precedence on the interface, for " + string(clusters); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the team reads %v", err)
			}
			links := world.StatusOf(a, "theirs").Programs[0].Links
			if !slices.ContainsFunc(links, func(l agent.LinkStatus) bool {
				return l.Target == "mo0" && l.State == "Failed" && strings.Contains(l.Error, "xdpMode")
			}) {
				t.Errorf("of its links it reads %+v", links)
			}
			runs := func(members string, mode v1alpha1.XDPMode) {
				t.Helper()
				world.Until(t, members, 20*time.Second, func() bool {
					chains, err := a.Chains()
					world.Must(t, err)
					got := ""
					for _, m := range chains[0].Members {
						got += m.Application + " "
					}
					return got == members && chains[0].XDPMode == mode && len(chains) == 2 && chains[1].XDPMode == teams
				})
			}
			runs("firewall team-b/open ", clusters)
			world.Send(t, "mo1", 2)
			world.Until(t, "the packets", 20*time.Second, func() bool { return world.Count(t, world.Counts(w, a, "firewall")) == 2 })
			_ = w.Accept(a, w.Gone("firewall"))
			runs("team-a/theirs team-b/open ", teams)
		})
	}
}

// TestWhoRunsChangesNoModeOfAnOlderOne: an application that runs and asks for another mode has no
// right to it. Its former version runs on.
func TestWhoRunsChangesNoModeOfAnOlderOne(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "mo0", "mo1")
	a, _ := w.Start()
	w.Must(a, world.InMode(w, "z-old", "mo0", v1alpha1.XDPNative, 1), world.InMode(w, "a-young", "mo0", "", 2))
	before := world.LinkOf(t, a, "z-old")
	err := w.Accept(a, world.InMode(w, "a-young", "mo0", v1alpha1.XDPGeneric, 2))
	if err == nil || !strings.Contains(err.Error(), "it asks for Generic, and application z-old, which has precedence on the interface, for Native") {
		t.Errorf("it is told %v", err)
	}
	if l := world.LinkOf(t, a, "z-old"); !reflect.DeepEqual(l, before) {
		t.Errorf("link was %+v and is %+v", before, l)
	}
	if got := world.ChainOf(t, a); got != "a-young:count_packets z-old:count_packets" {
		t.Errorf("chain %s", got)
	}
}

// TestWhoNeedsADriverThatThereIsNotIsRejectedAlone: what runs generically keeps its link.
func TestWhoNeedsADriverThatThereIsNotIsRejectedAlone(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	bridge(t, "br0")
	a, _ := w.Start()
	w.Must(a, world.InMode(w, "open", "br0", "", 1))
	before := world.LinkOf(t, a, "open")
	if err := w.Accept(a, world.InMode(w, "native", "br0", v1alpha1.XDPNative, 2)); err == nil || !strings.Contains(err.Error(),
		"set xdpMode to Auto or Generic") {
		t.Errorf("the one that needs the driver is told %v", err)
	}
	_ = w.Accept(a, world.InMode(w, "third", "br0", v1alpha1.XDPGeneric, 3))
	if l := world.LinkOf(t, a, "open"); l.ID != before.ID || l.XDPMode != v1alpha1.XDPGeneric || l.Error != "" {
		t.Errorf("link was %+v and is %+v", before, l)
	}
	if got := world.ChainOf(t, a); strings.Contains(got, "native") || strings.Count(got, ":") != 2 {
		t.Errorf("chain %s", got)
	}
}

// TestAModeThatChangesIsTakenOrLeft: where the new one cannot be had, the former version runs on.
func TestAModeThatChangesIsTakenOrLeft(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "mo0", "mo1")
	bridge(t, "br0")
	a, _ := w.Start()
	w.Must(a, world.InMode(w, "v", "mo0", "", 1), world.InMode(w, "b", "br0", v1alpha1.XDPGeneric, 2))
	world.Send(t, "mo1", 2)
	world.Until(t, "the packets", 20*time.Second, func() bool { return world.Count(t, world.Counts(w, a, "v")) == 2 })
	w.Must(a, world.InMode(w, "v", "mo0", v1alpha1.XDPGeneric, 1))
	if l := world.LinkOf(t, a, "v"); l.XDPMode != v1alpha1.XDPGeneric {
		t.Errorf("link %+v", l)
	}
	world.Send(t, "mo1", 2)
	world.Until(t, "the packets in the other mode", 20*time.Second, func() bool { return world.Count(t, world.Counts(w, a, "v")) == 4 })
	err := w.Accept(a, world.InMode(w, "b", "br0", v1alpha1.XDPNative, 2))
	if err == nil || !strings.Contains(err.Error(), "the driver runs no XDP programs") {
		t.Errorf("the one that needs the driver is told %v", err)
	}
	world.Until(t, "the former version to run", 20*time.Second, func() bool {
		got := world.LinksOf(a)
		return got["b xdp br0"] != 0 && world.Runs(t, got["b xdp br0"]) != 0
	})
	for _, s := range a.Status() {
		if s.Application.Name == "b" && s.Programs[0].Links[0].XDPMode != v1alpha1.XDPGeneric {
			t.Errorf("%+v", s.Programs[0].Links)
		}
	}
	world.PinsAreTidy(w, map[string]agent.ApplicationStatus{"v": a.Status()[1], "b": a.Status()[0]})
}

// TestAProgramOfSomebodyElseIsNeverDisplaced, in either mode, whatever is asked for.
func TestAProgramOfSomebodyElseIsNeverDisplaced(t *testing.T) {
	need.Kernel(t)
	for theirs, flags := range map[v1alpha1.XDPMode]int{v1alpha1.XDPNative: unix.XDP_FLAGS_DRV_MODE, v1alpha1.XDPGeneric: unix.XDP_FLAGS_SKB_MODE} {
		for _, ours := range []v1alpha1.XDPMode{v1alpha1.XDPAuto, v1alpha1.XDPNative, v1alpha1.XDPGeneric} {
			t.Run(string(theirs)+" and "+string(ours), func(t *testing.T) {
				world.Veth(t, "mo0", "mo1")
				program := world.ForeignProgram(t, ebpf.XDP)
				device, err := netlink.LinkByName("mo0")
				world.Must(t, err)
				world.Must(t, netlink.LinkSetXdpFdWithFlags(device, program.FD(), flags))
				before, err := netlink.LinkByName("mo0")
				world.Must(t, err)
				w := world.New(t)
				a, _ := w.Start()
				if err := w.Accept(a, world.InMode(w, "a", "mo0", ours, 1)); err == nil || !strings.Contains(err.Error(), "holds an XDP program that is not Skep's") {
					t.Errorf("it is told %v", err)
				}
				again(t, a)
				after, err := netlink.LinkByName("mo0")
				world.Must(t, err)
				if *after.Attrs().Xdp != *before.Attrs().Xdp || !after.Attrs().Xdp.Attached {
					t.Errorf("XDP was %+v and is %+v", before.Attrs().Xdp, after.Attrs().Xdp)
				}
			})
		}
	}
}

// again looks a few times more.
func again(t *testing.T, a *agent.Agent) {
	t.Helper()
	for range 3 {
		a.Reconcile(t.Context())
	}
}

// TestAnMTUThatTheDriverDoesNotTakeIsSaid: a veth compares that of its peer.
func TestAnMTUThatTheDriverDoesNotTakeIsSaid(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "mo0", "mo1")
	for _, name := range []string{"mo0", "mo1"} {
		l, err := netlink.LinkByName(name)
		world.Must(t, err)
		world.Must(t, netlink.LinkSetMTU(l, 9000))
	}
	a, _ := w.Start()
	err := w.Accept(a, world.InMode(w, "native", "mo0", v1alpha1.XDPNative, 1))
	if err == nil || !strings.Contains(err.Error(), "does not run the program at MTU 9000: lower the MTU") {
		t.Errorf("it is told %v", err)
	}
	_ = w.Accept(a, world.InMode(w, "open", "mo0", "", 2))
	if l := world.LinkOf(t, a, "open"); l.XDPMode != v1alpha1.XDPGeneric || !strings.Contains(l.XDPReason, "MTU 9000") {
		t.Errorf("link %+v", l)
	}
	again(t, a)
	mustGo(w, a, "open", "native")
}

// mustGo unloads applications.
func mustGo(w *world.World, a *agent.Agent, names ...string) {
	w.T.Helper()
	var gone []intent.Payload
	for _, name := range names {
		gone = append(gone, w.Gone(name))
	}
	w.Must(a, gone...)
	w.LeavesNothing()
}

// TestInterfacesOfAKindAndMembersAreAttachedTo: of all interfaces, those of the bridge.
func TestInterfacesOfAKindAndMembersAreAttachedTo(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "in0", "out0")
	world.Veth(t, "in1", "out1")
	b := bridge(t, "br0")
	for _, name := range []string{"in0", "in1"} {
		l, err := netlink.LinkByName(name)
		world.Must(t, err)
		world.Must(t, netlink.LinkSetMaster(l, b))
	}
	chosen := func(name string, i v1alpha1.Interfaces) intent.Payload {
		return w.Intent(name, "xdp_pass", v1alpha1.Program{Name: "xdp_pass", Attach: []v1alpha1.Attachment{{Hook: "xdp", Interfaces: &i}}})
	}
	all := []string{"*"}
	a, _ := w.Start()
	w.Must(a, chosen("members", v1alpha1.Interfaces{Names: all, MemberOf: "br0"}), chosen("bridges", v1alpha1.Interfaces{Names: all, Kinds: []string{"bridge"}}))
	want := []string{"bridges xdp br0", "members xdp in0", "members xdp in1"}
	links := world.LinksOf(a)
	for _, name := range want {
		if links[name] == 0 || len(links) != len(want) {
			t.Errorf("links %v, want %v", links, want)
		}
	}
	l, err := netlink.LinkByName("in1")
	world.Must(t, err)
	world.Must(t, netlink.LinkSetNoMaster(l))
	world.Until(t, "the one that left to be detached", 20*time.Second, func() bool { return world.LinksOf(a)["members xdp in1"] == 0 })
}
