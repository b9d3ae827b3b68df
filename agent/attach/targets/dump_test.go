package targets

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// alone calls do in a network namespace of its own, which ends with it.
func alone(t *testing.T, do func() error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	if err := unix.Unshare(unix.CLONE_NEWNET); errors.Is(err, unix.EPERM) {
		t.Skip("SKIPPED: no network namespace can be made here")
	} else if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(do(), unix.Setns(int(own.Fd()), unix.CLONE_NEWNET)); err != nil {
		t.Fatal(err)
	}
}

// within are the bounds of a pod's network namespace.
func within(budget time.Duration) bounded {
	return bounded{in: "pod team-a/web", until: time.Now().Add(budget), maxDevices: maxDevices, maxRoutes: maxRoutes}
}

// veths makes pairs of devices.
func veths(n int) (err error) {
	for i := range n {
		err = errors.Join(err, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("a", i)}, PeerName: fmt.Sprint("b", i)}))
	}
	return err
}

// TestABoundedListIsThatOfTheLibrary reads devices and default routes of every form by both.
func TestABoundedListIsThatOfTheLibrary(t *testing.T) {
	alone(t, func() error {
		err := veths(2)
		index := map[string]int{}
		for i, name := range []string{"a0", "b0", "a1", "b1"} {
			l, findErr := netlink.LinkByName(name)
			if findErr != nil {
				return errors.Join(err, findErr)
			}
			index[name] = l.Attrs().Index
			err = errors.Join(err, netlink.LinkSetUp(l), netlink.AddrAdd(l, &netlink.Addr{
				IPNet: &net.IPNet{IP: net.IPv4(10, 0, byte(i), 1), Mask: net.CIDRMask(24, 32)},
			}))
		}
		hop := func(name string, host byte) *netlink.NexthopInfo {
			return &netlink.NexthopInfo{LinkIndex: index[name], Gw: net.IPv4(10, 0, host, 2)}
		}
		err = errors.Join(err,
			netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(10, 0, 0, 2)}),
			netlink.RouteAdd(&netlink.Route{
				Priority: 7, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, MultiPath: []*netlink.NexthopInfo{hop("b0", 1), hop("a1", 2)},
			}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index["b1"], Priority: 9, Table: 100, Gw: net.IPv4(10, 0, 3, 2)}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index["a1"], Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, Priority: 5}))
		if err != nil {
			return err
		}
		b := within(time.Minute)
		own := devices{links: b.links, routes: b.defaultRoutes}
		library := devices{links: netlink.LinkList, routes: netlink.RouteList}
		got, err := own.list(sought{primary: true}, Running{})
		want, libraryErr := library.list(sought{primary: true}, Running{})
		if diff := cmp.Diff(want, got); diff != "" || len(want) != 5 {
			t.Errorf("devices (-library +bounded):\n%s", diff)
		}
		for _, one := range got {
			if is := slices.Contains([]string{"a0", "b0", "a1"}, one.Name); one.Primary != is {
				t.Errorf("%s is primary: %v, want %v", one.Name, one.Primary, is)
			}
		}
		return errors.Join(err, libraryErr)
	})
}

func TestAListOfAPodIsBounded(t *testing.T) {
	const routes = maxRoutes + 500
	alone(t, func() error {
		loopback, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		err = netlink.LinkSetUp(loopback)
		for i := range routes {
			err = errors.Join(err, netlink.RouteAdd(&netlink.Route{
				Type: unix.RTN_BLACKHOLE, Dst: &net.IPNet{IP: net.IPv4(10, byte(i>>8), byte(i), 0), Mask: net.CIDRMask(24, 32)},
			}))
		}
		if err != nil {
			return err
		}
		_, err = within(time.Minute).defaultRoutes(nil, netlink.FAMILY_V4)
		isTooMany(t, err, PartialError{In: "pod team-a/web", What: "routes", Read: maxRoutes, Limit: maxRoutes})
		if err := veths(maxDevices); err != nil {
			return err
		}
		all, err := within(time.Minute).links()
		isTooMany(t, err, PartialError{In: "pod team-a/web", What: "devices", Read: maxDevices, Limit: maxDevices})
		if len(all) > maxDevices {
			t.Errorf("%d devices were read", len(all))
		}
		_, err = within(0).links()
		isTooMany(t, err, PartialError{In: "pod team-a/web", What: "devices"})
		return nil
	})
}

func isTooMany(t *testing.T, err error, want PartialError) {
	t.Helper()
	got := new(PartialError)
	if !errors.As(err, &got) || *got != want {
		t.Errorf("the list fails with %v, want %+v", err, want)
	}
}

// TestAFloodOfDevicesHidesNoneThatIsLookedFor has more devices than are read, and default routes by
// some of them.
func TestAFloodOfDevicesHidesNoneThatIsLookedFor(t *testing.T) {
	alone(t, func() error {
		err := errors.Join(veths(maxDevices), netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer0"}))
		index := map[string]int{}
		for i, name := range []string{"eth0", "b7", "a9", "a11"} {
			l, findErr := netlink.LinkByName(name)
			if findErr != nil {
				return errors.Join(err, findErr)
			}
			index[name] = l.Attrs().Index
			err = errors.Join(err, netlink.LinkSetUp(l), netlink.AddrAdd(l, &netlink.Addr{
				IPNet: &net.IPNet{IP: net.IPv4(10, 0, byte(i), 1), Mask: net.CIDRMask(24, 32)},
			}))
		}
		if err := errors.Join(err, netlink.RouteAdd(&netlink.Route{LinkIndex: index["a9"], Gw: net.IPv4(10, 0, 2, 2)})); err != nil {
			return err
		}
		now := Running{UIDs: map[plan.Device][]string{{Index: index["a11"]}: {"a"}}, AsPrimary: func(string, plan.Interface) bool { return false }}
		reads := func(sentence string, limits bounded) (got []string) {
			t.Helper()
			one := singly{left: time.Minute}
			d := devices{links: limits.links, byIndex: one.byIndex, byName: one.byName, routes: limits.defaultRoutes, sampledRoutes: one.sampledRoutes}
			all, err := d.list(sought{primary: true, names: map[string]bool{"b7": true, "nosuch": true}}, now)
			if partial := new(PartialError); !errors.As(err, &partial) {
				t.Errorf("%s: the list fails with %v", sentence, err)
			}
			for _, one := range all {
				name := one.Name
				if one.Primary {
					name += " is primary"
				}
				got = append(got, name)
			}
			slices.Sort(got)
			return got
		}
		if diff := cmp.Diff([]string{"a11", "a9 is primary", "b7", "eth0"}, reads("many devices", within(time.Minute))); diff != "" {
			t.Errorf("many devices (-want +got):\n%s", diff)
		}
		few := within(time.Minute)
		few.maxRoutes = 1
		if diff := cmp.Diff([]string{"a11", "a9 is primary", "b7", "eth0 is primary"}, reads("many devices and routes", few)); diff != "" {
			t.Errorf("many devices and routes (-want +got):\n%s", diff)
		}
		// The devices are known, whatever the routes are.
		few.maxDevices = 2*maxDevices + 10
		got := reads("many routes", few)
		if len(got) < 2*maxDevices || !slices.Contains(got, "a12") || !slices.Contains(got, "a9 is primary") || !slices.Contains(got, "eth0 is primary") {
			t.Errorf("many routes hide devices: %d are left", len(got))
		}
		return nil
	})
}

// TestARouteTooManyIsOneOfThePrimaryInterfaceAlone has a definition with a pattern not be told of them.
func TestARouteTooManyIsOneOfThePrimaryInterfaceAlone(t *testing.T) {
	pattern, primary, named := &v1alpha1.Interfaces{Names: []string{"net*"}}, &v1alpha1.Interfaces{Primary: true}, &v1alpha1.Interfaces{Names: []string{"net1"}}
	for list, want := range map[string][3]bool{devicesList: {false, false, true}, routesList: {true, false, true}} {
		e := &PartialError{What: list}
		if got := [3]bool{e.isWhole(pattern), e.isWhole(primary), e.isWhole(named)}; got != want {
			t.Errorf("%s: a pattern, the primary one and a name are whole: %v, want %v", list, got, want)
		}
	}
}

// TestRoutesHideNoDefaultRoute has more routes than are read, and default routes by devices that
// are not called eth0: of IPv4 by two, of IPv6, where the kernel lists it last, by another.
func TestRoutesHideNoDefaultRoute(t *testing.T) {
	alone(t, func() error {
		err := veths(2)
		index := map[string]int{}
		for i, name := range []string{"a0", "b0", "a1", "b1"} {
			l, findErr := netlink.LinkByName(name)
			if findErr != nil {
				return errors.Join(err, findErr)
			}
			index[name] = l.Attrs().Index
			err = errors.Join(err, netlink.LinkSetUp(l), netlink.AddrAdd(l, &netlink.Addr{
				IPNet: &net.IPNet{IP: net.IPv4(10, 0, byte(i), 1), Mask: net.CIDRMask(24, 32)},
			}))
		}
		err = errors.Join(err,
			netlink.RouteAdd(&netlink.Route{
				Dst:       &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)},
				MultiPath: []*netlink.NexthopInfo{{LinkIndex: index["a0"], Gw: net.IPv4(10, 0, 0, 2)}, {LinkIndex: index["b0"], Gw: net.IPv4(10, 0, 1, 2)}},
			}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index["b1"], Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}}))
		// Routes with the first address of all come before the default one.
		for bits := 4; bits <= 32; bits++ {
			err = errors.Join(err, netlink.RouteAdd(&netlink.Route{Type: unix.RTN_BLACKHOLE, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(bits, 32)}}))
		}
		for i := range 40 {
			err = errors.Join(err, netlink.RouteAdd(&netlink.Route{
				LinkIndex: index["a1"], Dst: &net.IPNet{IP: net.IP{0xfd, byte(i), 15: 0}, Mask: net.CIDRMask(16, 128)},
			}))
		}
		if err != nil {
			return err
		}
		for sentence, limits := range map[string]bounded{
			"with too many routes": {in: "pod team-a/web", until: time.Now().Add(time.Minute), maxDevices: maxDevices, maxRoutes: 20},
			"with no time":         {in: "pod team-a/web"},
		} {
			one := singly{left: time.Minute}
			d := devices{links: netlink.LinkList, byIndex: one.byIndex, byName: one.byName, routes: limits.defaultRoutes, sampledRoutes: one.sampledRoutes}
			all, err := d.list(sought{primary: true}, Running{})
			if partial := new(PartialError); !errors.As(err, &partial) || partial.isLate() != errors.Is(err, ErrWaiting) {
				t.Errorf("%s: the list fails with %v", sentence, err)
			}
			var got []string
			for _, i := range all {
				if i.Primary {
					got = append(got, i.Name)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff([]string{"a0", "b0", "b1"}, got); diff != "" {
				t.Errorf("%s: primary interfaces (-want +got):\n%s", sentence, diff)
			}
		}
		return nil
	})
}

// TestSingleLookUpsHaveATimeTogether looks the loopback device up until no time is left.
func TestSingleLookUpsHaveATimeTogether(t *testing.T) {
	one := singly{left: 10 * time.Millisecond}
	began := time.Now()
	for {
		_, err := one.byName("lo")
		if errors.Is(err, ErrWaiting) {
			break
		}
		if err != nil || time.Since(began) > time.Minute {
			t.Fatalf("after %s: %v", time.Since(began), err)
		}
	}
	if _, err := one.byIndex(1); !errors.Is(err, ErrWaiting) {
		t.Errorf("with no time: %v", err)
	}
	if _, err := one.sampledRoutes(); !errors.Is(err, ErrWaiting) {
		t.Errorf("routes, with no time: %v", err)
	}
}

// TestNamespacesAreReadInTurn begins after the one that was read last.
func TestNamespacesAreReadInTurn(t *testing.T) {
	l := newLooking(t)
	for last, want := range map[uint64][]uint64{0: {3, 5, 9}, 3: {5, 9, 3}, 4: {5, 9, 3}, 9: {3, 5, 9}} {
		l.lastRead = last
		if got := l.next(nil, 0).inTurn([]uint64{3, 5, 9}); !slices.Equal(got, want) {
			t.Errorf("after %d: %v, want %v", last, got, want)
		}
	}
}
