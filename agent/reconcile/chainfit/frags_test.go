package chainfit_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// jumbo makes a pair of interfaces whose driver takes, at their MTU, only programs for packets of several buffers.
func jumbo(t *testing.T, name, peer string) {
	t.Helper()
	world.Veth(t, name, peer)
	for _, one := range []string{name, peer} {
		l, err := netlink.LinkByName(one)
		world.Must(t, err)
		world.Must(t, netlink.LinkSetMTU(l, 9000))
	}
}

// xdpAs is an application with one program on fr0, in a mode.
func xdpAs(w *world.World, name, object, program string, priority int32, mode v1alpha1.XDPMode) intent.Payload {
	at := world.On("xdp", "fr0")
	at[0].Priority, at[0].XDPMode = &priority, mode
	return w.Intent(name, object, v1alpha1.Program{Name: program, Attach: at})
}

// TestWhoTakesNoFragsSharesAJumboInterface: a chain that asks for no mode runs generically with it, whoever comes first.
func TestWhoTakesNoFragsSharesAJumboInterface(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	for _, order := range []string{"the one with frags first", "the one without first", "together"} {
		for _, priority := range []int32{100, 900} {
			t.Run(order, func(t *testing.T) {
				w := world.New(t)
				jumbo(t, "fr0", "fr1")
				a, _ := w.Start()
				frags := xdpAs(w, "frags", "xdp_frags", "xdp_frags", 500, "")
				plain := xdpAs(w, "plain", "xdp_count", "count_packets", priority, "")
				switch order {
				case "together":
					world.Must(t, w.Accept(a, frags, plain))
				case "the one without first":
					world.Must(t, w.Accept(a, plain))
					world.Must(t, w.Accept(a, frags))
				default:
					world.Must(t, w.Accept(a, frags))
					if l := world.LinkOf(t, a, "frags"); l.XDPMode != v1alpha1.XDPNative {
						t.Fatalf("alone: %+v", l)
					}
					world.Must(t, w.Accept(a, plain))
				}
				for _, name := range []string{"frags", "plain"} {
					if l := world.LinkOf(t, a, name); l.XDPMode != v1alpha1.XDPGeneric || l.State != agent.Attached || !strings.Contains(l.XDPReason, "MTU 9000") {
						t.Errorf("%s: %+v", name, l)
					}
				}
				world.Send(t, "fr1", 5)
				world.Until(t, "the packets", time.Minute, func() bool {
					return world.Count(t, world.Counts(w, a, "plain")) == 5 && world.Count(t, world.Counts(w, a, "frags")) == 5
				})
				// Every later plan of the interface goes well.
				world.Must(t, w.Accept(a, xdpAs(w, "frags", "xdp_frags", "xdp_frags", 50, "")))
				mustGo(w, a, "frags", "plain")
			})
		}
	}
}

// TestWhoTakesNoFragsIsLeftOutWhereTheDriverIsAskedFor: the message names it, and the other one runs natively and is updated.
func TestWhoTakesNoFragsIsLeftOutWhereTheDriverIsAskedFor(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	for _, order := range []string{"it comes second", "together", "two come second"} {
		t.Run(order, func(t *testing.T) {
			w := world.New(t)
			jumbo(t, "fr0", "fr1")
			a, _ := w.Start()
			frags := xdpAs(w, "frags", "xdp_frags", "xdp_frags", 500, v1alpha1.XDPNative)
			all := []intent.Payload{xdpAs(w, "plain", "xdp_count", "count_packets", 100, "")}
			want := []string{"frags:xdp_frags"}
			switch order {
			case "together":
				all = append(all, frags)
			case "two come second":
				all = append(all, xdpAs(w, "more", "xdp_frags", "xdp_frags", 900, ""))
				want = append(want, "more:xdp_frags")
				fallthrough
			default:
				world.Must(t, w.Accept(a, frags))
			}
			err := w.Accept(a, all...)
			for _, says := range []string{`plain: link "plain count_packets" into chain: frags: the driver of fr0 runs a chain at MTU 9000 only if each program`,
				`build it as SEC("xdp.frags"), lower the MTU`} {
				if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
					t.Errorf("it is told %v, want %q", err, says)
				}
			}
			isWhole := func() {
				t.Helper()
				if got := world.ChainOf(t, a); got != strings.Join(want, " ") {
					t.Errorf("the chain is %q, want %q", got, want)
				}
				if l := world.LinkOf(t, a, "frags"); l.XDPMode != v1alpha1.XDPNative || world.StatusOf(a, "frags").Conditions[0].Status != "True" {
					t.Errorf("frags: %+v", world.StatusOf(a, "frags"))
				}
			}
			isWhole()
			before := runsOfMember(t, a, "frags")
			world.Send(t, "fr1", 5)
			world.Until(t, "the packets", time.Minute, func() bool { return world.Count(t, world.Counts(w, a, "frags")) >= 5 })
			if now := runsOfMember(t, a, "frags"); now != 0 && now != before+5 {
				t.Errorf("it ran %d times, and %d before", now, before)
			}
			// An update waits for nobody who cannot join.
			for _, priority := range []int32{50, 800} {
				_ = w.Accept(a, xdpAs(w, "frags", "xdp_frags", "xdp_frags", priority, v1alpha1.XDPNative))
				world.Until(t, "the update", time.Minute, func() bool { return priorityOf(t, a, "frags") == priority })
				isWhole()
			}
			_ = w.Accept(a, w.Gone("frags"))
			world.Until(t, "the other one to join", time.Minute, func() bool { return world.StatusOf(a, "plain").Error == "" && world.LinksOf(a)["plain xdp fr0"] != 0 })
		})
	}
}

// TestATeamThatAsksForTheDriverKeepsNoProgramOfTheClusterOut: it leaves the interface.
func TestATeamThatAsksForTheDriverKeepsNoProgramOfTheClusterOut(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	jumbo(t, "fr0", "fr1")
	a, _ := w.Start()
	team := world.Tenant(xdpAs(w, "frags", "xdp_frags", "xdp_frags", 500, v1alpha1.XDPNative), "team-a", "frags", 1, 500)
	other := world.Tenant(xdpAs(w, "other", "xdp_frags", "xdp_frags", 500, ""), "team-b", "other", 1, 500)
	w.Must(a, team, other)
	_ = w.Accept(a, xdpAs(w, "plain", "xdp_count", "count_packets", 100, ""))
	world.Until(t, "the cluster's program to join", 20*time.Second, func() bool { return world.ChainOf(t, a) == "plain:count_packets team-b/other:xdp_frags" })
	for range 3 {
		again(t, a)
	}
	if s := world.StatusOf(a, "frags"); !strings.Contains(s.Error, "xdpMode") || !strings.Contains(s.Error, "MTU 9000") {
		t.Errorf("the team reads %q", s.Error)
	}
	for _, name := range []string{"plain", "other"} {
		if s := world.StatusOf(a, name); s.Error != "" {
			t.Errorf("%s: %s", name, s.Error)
		}
	}
	if got := world.ChainOf(t, a); got != "plain:count_packets team-b/other:xdp_frags" {
		t.Errorf("the chain is %q", got)
	}
}

// TestAGenericChainReturnsToTheDriverWhenThatIsAskedFor: not by itself, since packets pass meanwhile, and not before the
// driver may take it. The chain says so.
func TestAGenericChainReturnsToTheDriverWhenThatIsAskedFor(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	for _, cause := range []string{"the program without frags leaves", "the MTU is lowered", "who asks comes first"} {
		t.Run(cause, func(t *testing.T) {
			w := world.New(t)
			jumbo(t, "fr0", "fr1")
			a, _ := w.Start()
			frags, plain := xdpAs(w, "frags", "xdp_frags", "xdp_frags", 500, ""), xdpAs(w, "plain", "xdp_count", "count_packets", 100, "")
			w.Must(a, frags, plain)
			native := func() error { return w.Accept(a, xdpAs(w, "frags", "xdp_frags", "xdp_frags", 500, v1alpha1.XDPNative)) }
			generic := world.LinkOf(t, a, "frags")
			if c := world.ChainsOf(t, a); generic.XDPMode != v1alpha1.XDPGeneric || len(c) != 1 || c[0].XDPReason != generic.XDPReason ||
				!strings.Contains(generic.XDPReason, "set xdpMode: Native for one of its programs") || !strings.Contains(generic.XDPReason, "MTU 9000") {
				t.Fatalf("%+v", c)
			}
			if cause == "who asks comes first" {
				if err := native(); err == nil || !strings.Contains(err.Error(), "MTU 9000") {
					t.Errorf("before the driver takes it: %v", err)
				}
				again(t, a)
			}
			if cause == "the MTU is lowered" {
				// A veth compares that of its peer.
				for _, one := range []string{"fr0", "fr1"} {
					l, err := netlink.LinkByName(one)
					world.Must(t, err)
					world.Must(t, netlink.LinkSetMTU(l, 1500))
				}
			} else {
				_ = w.Accept(a, w.Gone("plain"))
			}
			if cause != "who asks comes first" {
				again(t, a)
				if l := world.LinkOf(t, a, "frags"); l.ID != generic.ID || l.XDPMode != v1alpha1.XDPGeneric {
					t.Errorf("nobody asked for another mode: %+v", l)
				}
				_ = native()
			}
			world.Until(t, "the driver", time.Minute, func() bool { return world.LinkOf(t, a, "frags").XDPMode == v1alpha1.XDPNative })
			if c := world.ChainsOf(t, a); c[0].XDPReason != "" || c[0].XDPMode != v1alpha1.XDPNative {
				t.Errorf("%+v", c[0])
			}
			world.Send(t, "fr1", 5)
			world.Until(t, "the packets", time.Minute, func() bool { return world.Count(t, world.Counts(w, a, "frags")) >= 5 })
		})
	}
}

// TestUpdatesOfOneMemberHaveTheDriverAskedOnce: packets pass meanwhile, and a tenant can update as often as it likes.
func TestUpdatesOfOneMemberHaveTheDriverAskedOnce(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	jumbo(t, "fr0", "fr1")
	a, _ := w.Start()
	w.Must(a, xdpAs(w, "frags", "xdp_frags", "xdp_frags", 500, ""), xdpAs(w, "plain", "xdp_count", "count_packets", 100, ""))
	if err := w.Accept(a, xdpAs(w, "frags", "xdp_frags", "xdp_frags", 500, v1alpha1.XDPNative)); err == nil {
		t.Fatal("the driver takes it")
	}
	was, asked := world.LinkOf(t, a, "frags").ID, 0
	for i, version := range []string{"xdp_count_v2", "xdp_count", "xdp_count_v2", "xdp_count"} {
		_ = w.Accept(a, xdpAs(w, "plain", version, "count_packets", 100, ""))
		// What asks is another version each time, too, which waits for nothing that failed before.
		_ = w.Accept(a, xdpAs(w, "frags", "xdp_frags", "xdp_frags", int32(501+i), v1alpha1.XDPNative))
		for range 3 {
			again(t, a)
		}
		if is := world.LinkOf(t, a, "frags").ID; is != was {
			was, asked = is, asked+1
		}
	}
	if asked != 1 {
		t.Errorf("the chain left the interface %d times", asked)
	}
}

// TestAnUpdateWithoutFragsLeavesTheFormerVersion of the application that asks for the driver, and of its neighbour.
func TestAnUpdateWithoutFragsLeavesTheFormerVersion(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	jumbo(t, "fr0", "fr1")
	a, _ := w.Start()
	world.Must(t, w.Accept(a, xdpAs(w, "frags", "xdp_frags", "xdp_frags", 500, v1alpha1.XDPNative), xdpAs(w, "other", "xdp_frags", "xdp_frags", 100, "")))
	err := w.Accept(a, xdpAs(w, "other", "xdp_count", "count_packets", 100, ""), xdpAs(w, "frags", "xdp_frags", "xdp_frags", 600, v1alpha1.XDPNative))
	if err == nil || !strings.Contains(err.Error(), "other: ") || !strings.Contains(err.Error(), `build it as SEC("xdp.frags")`) ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("Settled = %v", err)
	}
	if got := world.ChainOf(t, a); got != "other:xdp_frags frags:xdp_frags" || priorityOf(t, a, "frags") != 600 || world.LinkOf(t, a,
		"frags").XDPMode != v1alpha1.XDPNative {
		t.Errorf("the chain is %q, and frags %+v", got, world.StatusOf(a, "frags"))
	}
}

// memberOf is a member of the only chain.
func memberOf(t *testing.T, a *agent.Agent, name string) agent.MemberStatus {
	t.Helper()
	chains, err := a.Chains()
	if err != nil || len(chains) != 1 {
		t.Fatal(chains, err)
	}
	i := slices.IndexFunc(chains[0].Members, func(m agent.MemberStatus) bool { return m.Application == name })
	if i < 0 {
		t.Fatalf("%s is not in the chain %+v", name, chains[0].Members)
	}
	return chains[0].Members[i]
}

func priorityOf(t *testing.T, a *agent.Agent, name string) int32 {
	t.Helper()
	return memberOf(t, a, name).Priority
}

// runsOfMember is 0 where it is alone, since nothing counts then.
func runsOfMember(t *testing.T, a *agent.Agent, name string) uint64 {
	t.Helper()
	if runs := memberOf(t, a, name).Runs; runs != nil {
		return *runs
	}
	return 0
}
