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

// reading are the bounds of a pod's network namespace.
func reading(budget time.Duration) bounded {
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
			err = errors.Join(err, netlink.LinkSetUp(l), netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 0, byte(i), 1), Mask: net.CIDRMask(24, 32)}}))
		}
		hop := func(name string, host byte) *netlink.NexthopInfo {
			return &netlink.NexthopInfo{LinkIndex: index[name], Gw: net.IPv4(10, 0, host, 2)}
		}
		err = errors.Join(err,
			netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(10, 0, 0, 2)}),
			netlink.RouteAdd(&netlink.Route{Priority: 7, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, MultiPath: []*netlink.NexthopInfo{hop("b0", 1), hop("a1", 2)}}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index["b1"], Priority: 9, Table: 100, Gw: net.IPv4(10, 0, 3, 2)}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index["a1"], Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, Priority: 5}))
		if err != nil {
			return err
		}
		b := reading(time.Minute)
		own := devices{links: b.links, routes: b.defaultRoutes}
		library := devices{links: netlink.LinkList, routes: netlink.RouteList}
		got, err := own.list(true, Running{})
		want, libraryErr := library.list(true, Running{})
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
			err = errors.Join(err, netlink.RouteAdd(&netlink.Route{Type: unix.RTN_BLACKHOLE, Dst: &net.IPNet{IP: net.IPv4(10, byte(i>>8), byte(i), 0), Mask: net.CIDRMask(24, 32)}}))
		}
		if err != nil {
			return err
		}
		_, err = reading(time.Minute).defaultRoutes(nil, netlink.FAMILY_V4)
		isTooMany(t, err, TooManyError{In: "pod team-a/web", What: "routes", Read: maxRoutes, Limit: maxRoutes})
		if err := veths(maxDevices); err != nil {
			return err
		}
		all, err := reading(time.Minute).links()
		isTooMany(t, err, TooManyError{In: "pod team-a/web", What: "devices", Read: maxDevices, Limit: maxDevices})
		if len(all) > maxDevices {
			t.Errorf("%d devices were read", len(all))
		}
		_, err = reading(0).links()
		isTooMany(t, err, TooManyError{In: "pod team-a/web", What: "devices"})
		return nil
	})
}

func isTooMany(t *testing.T, err error, want TooManyError) {
	t.Helper()
	got := new(TooManyError)
	if !errors.As(err, &got) || *got != want {
		t.Errorf("the list fails with %v, want %+v", err, want)
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
