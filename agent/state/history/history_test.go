package history

import (
	"fmt"
	"path/filepath"
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

// TestRecordsAreFoundByPlaceApplicationAndPrograms finds them in what was kept, and in what the next
// agent reads.
func TestRecordsAreFoundByPlaceApplicationAndPrograms(t *testing.T) {
	file := filepath.Join(t.TempDir(), "history")
	h, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	record := func(uid, hook, on string, functions int) Record {
		return Record{UID: uid, Hook: hook, Interface: on, Revision: "r", Programs: []string{"f", "g"}, Need: plan.Need{Programs: 2, Functions: functions}}
	}
	all := map[At]Record{}
	for _, r := range []Record{
		record("b", "xdp", "eth0", 3), record("a", "xdp", "eth0", 0), record("a", "tcx/ingress", "eth0", 0), record("a", "xdp", "eth1", 4),
	} {
		all[r.At()] = r
	}
	if err := h.Keep(all); err != nil {
		t.Fatal(err)
	}
	again, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []*History{h, again} {
		if got := h.On("xdp", "eth0"); len(got) != 2 || got[0].UID != "a" || got[1].UID != "b" {
			t.Errorf("on xdp of eth0: %v", got)
		}
		if got := h.Of("a"); len(got) != 3 {
			t.Errorf("of a: %v", got)
		}
		if need, known := h.Need("a", "r", []string{"f", "g"}); !known || need.Functions != 4 {
			t.Errorf("a needs %v, %v", need, known)
		}
		if _, known := h.Need("a", "r", []string{"f"}); known {
			t.Error("what one of two programs needs is known")
		}
	}
	if err := h.Keep(nil); err != nil || len(h.On("xdp", "eth0"))+len(h.Of("a")) > 0 {
		t.Errorf("what is forgotten is found: %v", err)
	}
}
