package agent_test

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestASecondBPFFileSystemIsNoticed(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	var log strings.Builder
	open := func(bpffs string) {
		t.Helper()
		o := w.Options()
		o.BPFFS, o.Log = bpffs, slog.New(slog.NewTextHandler(&log, nil))
		a, err := agent.New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	open(w.BPFFS)
	open(w.BPFFS)
	if log.Len() > 0 {
		t.Errorf("the same file system is told: %s", log.String())
	}
	second := t.TempDir()
	if err := unix.Mount("bpf", second, "bpf", 0, ""); err != nil {
		t.Skip("SKIPPED: cannot mount a bpf file system: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(second, 0) })
	open(filepath.Join(second, "skep"))
	if !strings.Contains(log.String(), "another bpf file system") {
		t.Errorf("log = %q", log.String())
	}
}
