package targets_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestInterfacesComeGoAndAreRenamed(t *testing.T) {
	need.Kernel(t)
	for _, hook := range []string{"xdp", "tcx/ingress", "tc/egress"} {
		t.Run(hook, func(t *testing.T) {
			world.NeedHook(t, hook)
			w := world.New(t)
			world.Veth(t, "wan0", "peer0")
			a, _ := w.Start()
			has := func(want ...string) {
				t.Helper()
				world.Until(t, "attachment to "+strings.Join(want, ", "), time.Minute, func() bool { return slices.Equal(world.Targets(a), want) })
			}
			at := v1alpha1.Attachment{Hook: hook, Interfaces: &v1alpha1.Interfaces{Names: []string{"wan*", "late0"}, Exclude: []string{"*9"}}}
			p := world.Version(w, "1", at)
			if err := w.Accept(a, p); err != nil {
				t.Fatal(err)
			}
			has("wan0")
			world.Veth(t, "wan1", "peer1")
			world.Veth(t, "wan9", "peer9")
			has("wan0", "wan1")
			world.Veth(t, "late0", "peer2")
			has("late0", "wan0", "wan1")

			gone, err := netlink.LinkByName("wan1")
			if err != nil {
				t.Fatal(err)
			}
			if err := netlink.LinkDel(gone); err != nil {
				t.Fatal(err)
			}
			has("late0", "wan0")

			before := linkOn(t, a, "wan0")
			rename(t, "wan0", "wan5")
			has("late0", "wan5")
			if now := linkOn(t, a, "wan5"); now != before {
				t.Errorf("the renamed interface has link %d and had %d", now, before)
			}
			rename(t, "wan5", "lan5")
			has("late0")
			if s := a.Status()[0]; s.Error != "" {
				t.Errorf("Error = %q", s.Error)
			}
			world.PinsAreTidy(w, map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
		})
	}
}

func linkOn(t testing.TB, a *agent.Agent, target string) uint32 {
	t.Helper()
	for _, l := range a.Status()[0].Programs[0].Links {
		if l.Target == target {
			return l.ID
		}
	}
	t.Fatalf("no link on %s", target)
	return 0
}

// rename takes the interface down for it: before Linux 6.2 one that is up keeps
// its name (commit bd039b5ea2a9).
func rename(t testing.TB, from, to string) {
	t.Helper()
	l, err := netlink.LinkByName(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []error{netlink.LinkSetDown(l), netlink.LinkSetName(l, to), netlink.LinkSetUp(l)} {
		if step != nil {
			t.Fatal(step)
		}
	}
}

func TestThePrimaryInterfaceIsThatOfTheDefaultRoute(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "pr0", "pr1")
	world.Veth(t, "pr2", "pr3")
	a, _ := w.Start()
	at := v1alpha1.Attachment{Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Primary: true}}
	if err := w.Accept(a, world.Version(w, "1", at)); err != nil {
		t.Fatal(err)
	}
	if c := a.Status()[0].Conditions[0]; c.Status != "False" || c.Reason != "Waiting" || !strings.Contains(c.Message, "primary") {
		t.Errorf("without a default route: %+v", c)
	}
	route := func(name string) {
		t.Helper()
		address, err := netlink.ParseAddr("10.99.0.1/24")
		if err != nil {
			t.Fatal(err)
		}
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrReplace(l, address); err != nil {
			t.Fatal(err)
		}
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: []byte{10, 99, 0, 2}}); err != nil {
			t.Fatal(err)
		}
	}
	route("pr0")
	world.Until(t, "the primary interface", time.Minute, func() bool { return slices.Equal(world.Targets(a), []string{"pr0"}) })
	world.Until(t, "the condition", time.Minute, func() bool { return a.Status()[0].Conditions[0].Status == "True" })
}
