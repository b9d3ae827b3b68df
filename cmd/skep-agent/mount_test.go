package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// fileSystem is what a folder lies on.
func fileSystem(t *testing.T, dir string) unix.Statfs_t {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// TestABPFFileSystemIsMountedOnceForTheNodeToo stands in for a node by a mount
// namespace whose folder is shared with that of a container, as bidirectional
// propagation has it.
func TestABPFFileSystemIsMountedOnceForTheNodeToo(t *testing.T) {
	need.Kernel(t)
	binary, dir := command.Build(t, "skep-agent"), t.TempDir()
	// The thread ends with the test, and its namespace with it.
	runtime.LockOSThread()
	for _, err := range []error{
		unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(dir, dir, "", unix.MS_BIND, ""),
		unix.Mount("", dir, "", unix.MS_SHARED, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for unix.Unmount(dir, unix.MNT_DETACH) == nil {
		}
	})
	mount := func(dir string) (string, error) {
		cmd := exec.CommandContext(t.Context(), binary, "--mount-bpffs="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := mount(dir); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	first := fileSystem(t, dir)
	if first.Type != unix.BPF_FS_MAGIC || first.Flags&unix.ST_NOSUID == 0 || first.Flags&unix.ST_NODEV == 0 || first.Flags&unix.ST_NOEXEC == 0 {
		t.Fatalf("on the node there is %+v", first)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("everybody may look there: %v, %v", info, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "kept"), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := mount(dir); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "kept")); err != nil {
		t.Errorf("another was mounted over it: %v", err)
	}
	if out, err := mount(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(out, "read file system of") {
		t.Errorf("a folder that is none: %v, %s", err, out)
	}
}
