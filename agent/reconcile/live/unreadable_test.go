package live_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// blind puts another file in the place of the agent's descriptor of a link, so that
// the kernel answers nothing about it.
func blind(t *testing.T, id uint32) {
	t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, info := range infos {
		text, err := os.ReadFile(info)
		if err != nil || !strings.Contains(string(text), fmt.Sprintf("link_id:\t%d\n", id)) {
			continue
		}
		var fd int
		if _, err := fmt.Sscan(filepath.Base(info), &fd); err != nil {
			t.Fatal(err)
		}
		if err := unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		found = true
	}
	if !found {
		t.Fatalf("no descriptor of link %d", id)
	}
}

// TestALinkThatCannotBeReadHoldsUpNoOther: others are loaded and unloaded.
func TestALinkThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	need.Kernel(t)
	for _, hook := range []string{"xdp", "tcx/ingress"} {
		t.Run(hook, func(t *testing.T) {
			world.NeedLink(t, hook)
			w := world.New(t)
			world.Veth(t, "un0", "un1")
			a, _ := w.Start()
			object, program := "tcx_count", "count_ingress"
			if hook == "xdp" {
				object, program = "xdp_count", "count_packets"
			}
			app := w.Intent("app", object, v1alpha1.Program{Name: program, Attach: world.On(hook, "un0")})
			old := w.Intent("old", "raw_tp_count", world.RawProgram())
			if err := w.Accept(a, app, old); err != nil {
				t.Fatal(err)
			}
			blind(t, world.StatusOf(a, "app").Programs[0].Links[0].ID)
			fresh := w.Intent("new", "raw_tp_count", world.RawProgram())
			// What cannot be read is reported, and nothing else.
			if err := w.Accept(a, w.Tombstone(old), fresh); err != nil && !strings.HasPrefix(err.Error(), "app: ") {
				t.Error(err)
			}
			if world.StatusOf(a, "old") != nil {
				t.Error("what is to go is there")
			}
			if s := world.StatusOf(a, "new"); s == nil || s.Conditions[0].Status != "True" {
				t.Errorf("what is new: %+v", s)
			}
			if err := w.Accept(a, w.Tombstone(app), w.Tombstone(fresh)); err != nil {
				t.Error(err)
			}
			if s := world.StatusOf(a, "app"); s != nil {
				t.Errorf("what cannot be read is not unloaded: %+v", s)
			}
			w.LeavesNothing()
		})
	}
}
