package targets

import (
	"errors"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// churn answers as a kernel does whose lists change while they are read: the
// first answers are cut off, each with what stands in it.
type churn[T any] struct {
	cutOff [][]T
	whole  []T
	err    error
	asked  int
}

func (c *churn[T]) list() ([]T, error) {
	c.asked++
	if c.asked <= len(c.cutOff) {
		return c.cutOff[c.asked-1], netlink.ErrDumpInterrupted
	}
	return c.whole, c.err
}

// always cuts every answer off after the entries.
func always[T any](entries ...T) *churn[T] {
	c := &churn[T]{}
	for range dumpTries {
		c.cutOff = append(c.cutOff, entries)
	}
	return c
}

func device(index int, name string) netlink.Link {
	return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index, Name: name}}
}

func byDefault(index int) netlink.Route {
	return netlink.Route{LinkIndex: index, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}
}

func TestAListThatChangesWhileItIsReadIsAskedForAgain(t *testing.T) {
	broken := errors.New("no memory")
	for sentence, tc := range map[string]struct {
		churn *churn[int]
		want  []int
		whole bool
		asked int
		err   error
	}{
		"read at once":            {&churn[int]{whole: []int{1, 2}}, []int{1, 2}, true, 1, nil},
		"cut off twice":           {&churn[int]{cutOff: [][]int{{1}, {}}, whole: []int{1, 2}}, []int{1, 2}, true, 3, nil},
		"cut off to the end":      {always(1), []int{1}, false, dumpTries, nil},
		"another error, at once":  {&churn[int]{err: broken}, nil, false, 1, broken},
		"another error, later on": {&churn[int]{cutOff: [][]int{{1}}, err: broken}, nil, false, 2, broken},
	} {
		t.Run(sentence, func(t *testing.T) {
			got, whole, err := dump(tc.churn.list)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
			if whole != tc.whole || tc.churn.asked != tc.asked || !errors.Is(err, tc.err) {
				t.Errorf("whole %v after %d tries (%v), want %v after %d (%v)", whole, tc.churn.asked, err, tc.whole, tc.asked, tc.err)
			}
		})
	}
}

// TestACutOffListTakesNoInterfaceAway has something run on eth1, which the list
// lacks, and on interface 3, which is truly gone.
func TestACutOffListTakesNoInterfaceAway(t *testing.T) {
	now := Running{UIDs: map[plan.Device][]string{{Index: 2}: {"a"}, {Index: 3}: {"a"}}}
	for sentence, tc := range map[string]struct {
		links *churn[netlink.Link]
		ask   error
		want  []plan.Interface
	}{
		"a whole list is believed": {
			&churn[netlink.Link]{whole: []netlink.Link{device(1, "lo")}}, errors.New("not asked"),
			[]plan.Interface{{Device: plan.Device{Index: 1}, Name: "lo", Kind: "dummy"}},
		},
		"a list cut off is asked about": {
			always(device(1, "lo"), device(3, "old")), nil,
			[]plan.Interface{{Device: plan.Device{Index: 1}, Name: "lo", Kind: "dummy"}, {Device: plan.Device{Index: 2}, Name: "eth1", Kind: "dummy"}},
		},
		"an old name gives way": {
			always(device(2, "eth0")), nil,
			[]plan.Interface{{Device: plan.Device{Index: 2}, Name: "eth1", Kind: "dummy"}},
		},
		"who cannot tell takes nothing away": {
			always(device(1, "lo")), errors.New("no buffers"), nil,
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			d := devices{links: tc.links.list, byIndex: func(index int) (netlink.Link, error) {
				switch {
				case tc.ask != nil:
					return nil, tc.ask
				case index == 2:
					return device(2, "eth1"), nil
				}
				return nil, netlink.LinkNotFoundError{}
			}}
			got, err := d.list(sought{}, now)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("interfaces (-want +got):\n%s", diff)
			}
			if (err == nil) != (tc.want != nil) || err != nil && !errors.Is(err, tc.ask) {
				t.Errorf("list = %v", err)
			}
		})
	}
}

// TestCutOffRoutesTakeNoPrimaryAway has a run on eth1 as a primary interface,
// and b on eth2 by its name.
func TestCutOffRoutesTakeNoPrimaryAway(t *testing.T) {
	now := Running{
		UIDs:      map[plan.Device][]string{{Index: 2}: {"a"}, {Index: 3}: {"b"}},
		AsPrimary: func(uid string, on plan.Interface) bool { return uid == "a" && on.Name == "eth1" },
	}
	links := &churn[netlink.Link]{whole: []netlink.Link{device(1, "eth0"), device(2, "eth1"), device(3, "eth2")}}
	for sentence, tc := range map[string]struct {
		routes *churn[netlink.Route]
		want   []string
	}{
		"whole routes are believed":       {&churn[netlink.Route]{whole: []netlink.Route{byDefault(1)}}, []string{"eth0"}},
		"routes cut off add to what runs": {always(byDefault(1)), []string{"eth0", "eth1"}},
		"no route was read":               {always[netlink.Route](), []string{"eth1"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			d := devices{links: links.list, routes: func(_ netlink.Link, family int) ([]netlink.Route, error) {
				if family == netlink.FAMILY_V6 {
					return nil, nil
				}
				return tc.routes.list()
			}}
			all, err := d.list(sought{primary: true}, now)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, i := range all {
				if i.Primary {
					got = append(got, i.Name)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("primary interfaces (-want +got):\n%s", diff)
			}
		})
	}
}

func TestADeviceIsDescribed(t *testing.T) {
	d := devices{links: (&churn[netlink.Link]{whole: []netlink.Link{
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "lo", MTU: 65536}},
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 2, Name: "eth0", MTU: 1500, ParentDev: "0000:01:00.0", MasterIndex: 4,
			Xdp: &netlink.LinkXdp{Attached: true, AttachMode: 1}}},
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 3, Name: "veth0", Xdp: &netlink.LinkXdp{Attached: true, AttachMode: 2}}},
		&netlink.Bond{LinkAttrs: netlink.LinkAttrs{Index: 4, Name: "bond0", Xdp: &netlink.LinkXdp{}}},
	}}).list}
	got, err := d.list(sought{}, Running{})
	if err != nil {
		t.Fatal(err)
	}
	want := []plan.Interface{
		{Device: plan.Device{Index: 1}, Name: "lo", MTU: 65536},
		{Device: plan.Device{Index: 2}, Name: "eth0", MTU: 1500, Physical: true, Master: "bond0", XDPMode: v1alpha1.XDPNative},
		{Device: plan.Device{Index: 3}, Name: "veth0", Kind: "veth", XDPMode: v1alpha1.XDPGeneric},
		{Device: plan.Device{Index: 4}, Name: "bond0", Kind: "bond"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
}
