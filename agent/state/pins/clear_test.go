package pins

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// TestWhatCanBeRemovedIsRemoved has Skep's qdisc in a network namespace that cannot be found at first: filters may be left there.
func TestWhatCanBeRemovedIsRemoved(t *testing.T) {
	s, root := store(t)
	filter, err := loader.Prepare(opened(t, intent.Payload{
		Programs: []v1alpha1.Program{{Name: "count_ingress", Attach: []v1alpha1.Attachment{
			{Hook: "tc/ingress", Interfaces: &v1alpha1.Interfaces{Names: []string{"lo"}}},
		}}},
	}), programs.Object("tcx_count"))
	if err != nil {
		t.Fatal(err)
	}
	filters, traces := load(t, s, filter, nil), load(t, s, tracer(t, "1"), nil)
	traced, err := link.Tracepoint("syscalls", "sys_enter_getpgid", traces.Programs["tracepoint_count"], nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.PinLink("uid", plan.Attachment{Program: "tracepoint_count", Instance: "tracepoint_count", Hook: "tracepoint",
		Target: plan.Target{Tracepoint: "syscalls/sys_enter_getpgid"}}, 0, traced)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	note := qdiscs{filepath.Join(root, qdiscsDir)}
	away := plan.Device{NetnsID: 1, Index: 3}
	if err := note.Note(away); err != nil {
		t.Fatal(err)
	}
	s.Filters.Namespaces = netns.NewTable()
	err = s.Clear(func(int) {})
	if err == nil || !strings.Contains(err.Error(), "clear filters; the pins of programs that they may run are left") {
		t.Errorf("Clear = %v", err)
	}
	for path, stays := range map[string]bool{
		s.RevisionDir("uid", filters.Name): true, note.path(away): true, s.RevisionDir("uid", traces.Name): false, s.linksDir("uid"): false,
	} {
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("%s stays: %t, want %t", path, err == nil, stays)
		}
	}
	s.Filters.Namespaces.Renew(nil, nil)
	if err := s.Clear(func(int) {}); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
