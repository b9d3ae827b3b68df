package kube

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/need"
)

func TestLabelsThatHaveNoRoomLeaveThoseBeforeAndNothingElse(t *testing.T) {
	need.Kernel(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, labelsFile)
	s := openSelf(path, "node", slog.New(slog.DiscardHandler))
	if err := s.keep(map[string]string{"role": "edge"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 1<<17), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := s.keep(map[string]string{"role": strings.Repeat("x", 1<<14)}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("keep = %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left on disk: %v, %v", entries, err)
	}
	if again := openSelf(path, "node", slog.New(slog.DiscardHandler)).labels(); again["role"] != "edge" {
		t.Errorf("labels %v", again)
	}
}
