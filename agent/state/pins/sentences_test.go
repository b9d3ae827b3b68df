package pins

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/jargon"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestAFileSystemThatCannotBeWrittenIsNamedInPlainWords: somebody mounted it anew, read-only.
func TestAFileSystemThatCannotBeWrittenIsNamedInPlainWords(t *testing.T) {
	need.Kernel(t)
	root := t.TempDir()
	if err := unix.Mount("bpf", root, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := OpenStore(root + "/skep")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	p := tracer(t, "1")
	r := load(t, s, p, nil)
	if err := unix.Mount("bpf", root, "bpf", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	program, err := copyProgram(s, r, p, "tracepoint_count")
	if err == nil {
		t.Fatalf("it is pinned: %v", program.Close())
	}
	if !errors.Is(err, unix.EROFS) || jargon.In(err.Error()) != "" || !strings.Contains(err.Error(), "pin program tracepoint_count: read-only file system") {
		t.Errorf("AddCopy = %v", err)
	}
}
