package hooks_test

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// bond makes a bond of interfaces.
func bond(t *testing.T, name string, members ...string) *netlink.Bond {
	t.Helper()
	b := netlink.NewLinkBond(netlink.LinkAttrs{Name: name})
	b.Mode, b.Miimon = netlink.BOND_MODE_ACTIVE_BACKUP, 10
	if err := netlink.LinkAdd(b); err != nil {
		t.Skipf("SKIPPED: the kernel has no bonds: %v", err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(b) })
	world.Must(t, netlink.LinkSetUp(b))
	for _, member := range members {
		joins(t, b, member)
	}
	return b
}

// joins makes an interface a member of a bond, which takes it while it is down alone.
func joins(t *testing.T, b *netlink.Bond, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	world.Must(t, err)
	world.Must(t, netlink.LinkSetDown(l))
	world.Must(t, netlink.LinkSetMaster(l, b))
	world.Must(t, netlink.LinkSetUp(l))
}

// TestMembersOfABondAndTheBondAreAttachedTo has programs on the members of a bond, of which one
// leaves and comes back, and on the bond.
func TestMembersOfABondAndTheBondAreAttachedTo(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	for hook, object := range map[string]string{"xdp": "xdp_count", "tcx/ingress": "tcx_count", "tc/ingress": "tcx_count"} {
		for chosen, i := range map[string]v1alpha1.Interfaces{
			"members": {Names: []string{"*"}, MemberOf: "skepbond"},
			"bond":    {Names: []string{"*"}, Kinds: []string{"bond"}, Exclude: []string{"bond0"}},
		} {
			t.Run(hook+"/"+chosen, func(t *testing.T) {
				world.NeedHook(t, hook)
				w := world.New(t)
				world.Veth(t, "in0", "out0")
				world.Veth(t, "in1", "out1")
				b := bond(t, "skepbond", "in0", "in1")
				a, _ := w.Start()
				p := w.Intent(chosen, object, v1alpha1.Program{Name: world.FunctionOf(hook), Attach: []v1alpha1.Attachment{{Hook: hook, Interfaces: &i}}})
				w.Must(a, p)
				link := func(name string) bool { _, ok := world.LinksOf(a)[chosen+" "+hook+" "+name]; return ok }
				if onMembers := chosen == "members"; link("in0") != onMembers || link("in1") != onMembers || link("skepbond") == onMembers {
					t.Errorf("links %v", world.LinksOf(a))
				}
				out, err := netlink.LinkByName("out0")
				world.Must(t, err)
				world.Until(t, "a packet to be counted", 10*time.Second, func() bool {
					world.Must(t, world.SendFrame(out.Attrs().Index))
					return world.Counted(w, p.UID) > 0
				})
				if chosen == "members" {
					l, err := netlink.LinkByName("in1")
					world.Must(t, err)
					world.Must(t, netlink.LinkSetNoMaster(l))
					world.Until(t, "the one that left to be detached", 20*time.Second, func() bool { return !link("in1") && link("in0") })
					joins(t, b, "in1")
					world.Until(t, "the one that came back to be attached", 20*time.Second, func() bool { return link("in1") })
				}
				w.Must(a, w.Gone(chosen))
				w.LeavesNothing()
			})
		}
	}
}
