// Package hardened has the machine's kernel defend itself as administrators may have it, while a test runs. It owns what
// is the same for the whole machine, and one test at a time has it.
package hardened

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/cached"
)

// JIT has the kernel blind constants while do runs. The network namespace of the parent process may have the sysctl. No other
// test loads what takes longer by it.
func JIT(t *testing.T, do func()) {
	t.Helper()
	err := cached.Alone(filepath.Join(os.TempDir(), "skep-hardened"), func() error {
		was := exchangeHardening(t, "2")
		defer exchangeHardening(t, was)
		do()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// exchangeHardening sets the sysctl, and returns what it was.
func exchangeHardening(t *testing.T, level string) (was string) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, others := namespaceOf(t, "/proc/thread-self/ns/net"), namespaceOf(t, fmt.Sprintf("/proc/%d/ns/net", os.Getppid()))
	if err := unix.Setns(others, unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setns(own, unix.CLONE_NEWNET); err != nil {
			t.Fatal(err)
		}
	}()
	const name = "/proc/thread-self/root/proc/sys/net/core/bpf_jit_harden"
	text, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name, []byte(level), 0)
	}
	if err != nil {
		t.Skipf("SKIPPED: net.core.bpf_jit_harden cannot be set: %v", err)
	}
	return string(text)
}

// namespaceOf opens a namespace until the test ends.
func namespaceOf(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("SKIPPED: the network namespace of the parent process cannot be entered: %v", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
