package clsact

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/recommended"
)

// TestTheKindOfAQdiscIsLookedUp has an interface with each kind, and one that is missing.
func TestTheKindOfAQdiscIsLookedUp(t *testing.T) {
	need.Kernel(t)
	leaks.NetworkNamespace(t)
	table := New(nil)
	is := func(when, want string, index int) {
		t.Helper()
		if kind, err := table.kindOf(plan.Device{Index: index}); err != nil || kind != want {
			t.Errorf("%s, the qdisc is %q, not %q: %v", when, kind, want, err)
		}
	}
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: 1, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0)}}
	is("without one", "", 1)
	is("without an interface", "", 7)
	for kind, one := range map[string]netlink.Qdisc{"clsact": qdisc(1), "ingress": ingress} {
		if err := netlink.QdiscAdd(one); err != nil {
			t.Fatal(err)
		}
		is("with one", kind, 1)
		if err := netlink.QdiscDel(one); err != nil {
			t.Fatal(err)
		}
		is("after it was deleted", "", 1)
	}
}

// TestAFullBandIsListedByTheCommandOfTheMessage: the filters of others have every pref that a hook may have.
func TestAFullBandIsListedByTheCommandOfTheMessage(t *testing.T) {
	f := newFloodable(t)
	table := f.table()
	r := f.request("tc/ingress", 0)
	one, _ := table.Restore(r)
	if err := table.needQdisc(one.side); err != nil {
		t.Fatal(err)
	}
	one.band = Band{1, 3, 1}
	for pref := one.band.first; pref <= one.band.last; pref++ {
		f.add(one.side, pref, 7, f.other)
	}
	f.look(table)
	err := one.attach(r)
	if !errors.Is(err, errFull) {
		t.Fatalf("it attached: %v", err)
	}
	recommended.Run(t, err.Error(), "tc filter show")
}
