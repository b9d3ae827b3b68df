package agent_test

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/api/v1alpha1"
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
	must(t, netlink.LinkSetUp(b))
	for _, member := range members {
		joins(t, b, member)
	}
	return b
}

// joins makes an interface a member of a bond, which takes it while it is down alone.
func joins(t *testing.T, b *netlink.Bond, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	must(t, netlink.LinkSetDown(l))
	must(t, netlink.LinkSetMaster(l, b))
	must(t, netlink.LinkSetUp(l))
}

// TestMembersOfABondAndTheBondAreAttachedTo has programs on the members of a bond, of which one
// leaves and comes back, and on the bond.
func TestMembersOfABondAndTheBondAreAttachedTo(t *testing.T) {
	need.Kernel(t)
	quiet(t)
	for hook, object := range map[string]string{"xdp": "xdp_count", "tcx/ingress": "tcx_count", "tc/ingress": "tcx_count"} {
		for chosen, i := range map[string]v1alpha1.Interfaces{
			"members": {Names: []string{"*"}, MemberOf: "skepbond"},
			"bond":    {Names: []string{"*"}, Kinds: []string{"bond"}, Exclude: []string{"bond0"}},
		} {
			t.Run(hook+"/"+chosen, func(t *testing.T) {
				needHook(t, hook)
				w := newWorld(t)
				veth(t, "in0", "out0")
				veth(t, "in1", "out1")
				b := bond(t, "skepbond", "in0", "in1")
				a, _ := w.start()
				p := w.intent(chosen, object, v1alpha1.Program{Name: functionOf(hook), Attach: []v1alpha1.Attachment{{Hook: hook, Interfaces: &i}}})
				w.must(a, p)
				link := func(name string) bool { _, ok := linksOf(a)[chosen+" "+hook+" "+name]; return ok }
				if onMembers := chosen == "members"; link("in0") != onMembers || link("in1") != onMembers || link("skepbond") == onMembers {
					t.Errorf("links %v", linksOf(a))
				}
				out, err := netlink.LinkByName("out0")
				must(t, err)
				until(t, "a packet to be counted", 10*time.Second, func() bool {
					must(t, sendFrame(out.Attrs().Index))
					return w.counted(p.UID) > 0
				})
				if chosen == "members" {
					l, err := netlink.LinkByName("in1")
					must(t, err)
					must(t, netlink.LinkSetNoMaster(l))
					until(t, "the one that left to be detached", 20*time.Second, func() bool { return !link("in1") && link("in0") })
					joins(t, b, "in1")
					until(t, "the one that came back to be attached", 20*time.Second, func() bool { return link("in1") })
				}
				w.must(a, w.gone(chosen))
				w.leavesNothing()
			})
		}
	}
}
