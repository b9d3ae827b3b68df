package history

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/reconcile/plan"
)

// TestWhatRunsInPodsIsRememberedOfEach: eth0 has one index in all pods. A pod that is made anew may be
// there twice for a while.
func TestWhatRunsInPodsIsRememberedOfEach(t *testing.T) {
	eth0 := func(id uint64, in string) plan.Interface {
		return plan.Interface{Device: plan.Device{NetnsID: id, Index: 2}, Name: "eth0", In: in}
	}
	link := func(uid string, id uint64) plan.Link {
		return plan.Link{UID: uid, Revision: "r", Attachment: plan.Attachment{Program: "f", Hook: "tcx/ingress", Target: plan.Target{Ifindex: 2, NetnsID: id}}}
	}
	chain := plan.Chain{Device: plan.Device{NetnsID: 8, Index: 2}, Members: []plan.Member{{UID: "a", Revision: "r", Program: "g"}}}
	got := map[At][]string{}
	for at, one := range Present([]plan.Interface{eth0(0, ""), eth0(7, "pod a/p"), eth0(8, "pod a/q"), eth0(9, "pod a/q")},
		[]plan.Link{link("a", 0), link("b", 7), link("b", 8), link("b", 9), link("c", 10)}, []plan.Chain{chain}) {
		got[at] = one.Programs
	}
	want := map[At][]string{
		{"a", "tcx/ingress", "eth0"}:            {"f"},
		{"b", "tcx/ingress", "eth0 in pod a/p"}: {"f"},
		{"b", "tcx/ingress", "eth0 in pod a/q"}: {"f"},
		{"a", "xdp", "eth0 in pod a/q"}:         {"g"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what runs (-want +got):\n%s", diff)
	}
}

// TestWhatIsThereIsRememberedBeforeWhatIsGone bounds records of applications that are
// not known, on interfaces that are there and on others.
func TestWhatIsThereIsRememberedBeforeWhatIsGone(t *testing.T) {
	all := map[At]Record{}
	for i := range 2 * maxUnknown {
		one := Record{UID: fmt.Sprintf("u%04d", i), Hook: "xdp", Interface: "eth0", Gone: int64(i)}
		if i%4 == 0 {
			one.Gone = 0
		}
		all[one.At()] = one
	}
	Bound(all, func(string) bool { return false })
	there, oldest := 0, int64(0)
	for _, one := range all {
		if one.Gone == 0 {
			there++
		} else if oldest == 0 || one.Gone < oldest {
			oldest = one.Gone
		}
	}
	if len(all) != maxUnknown || there != maxUnknown/2 || oldest < maxUnknown {
		t.Errorf("of %d, %d are of interfaces that are there; the longest gone is %d", len(all), there, oldest)
	}
}
