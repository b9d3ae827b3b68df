// Package hardened has the machine's kernel defend itself as administrators may have it, while a test runs. It owns what
// is the same for the whole machine, and one test at a time has it.
package hardened

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/cached"
)

// sysctl is net.core.bpf_jit_harden, which the initial network namespace alone has.
const sysctl = "/proc/sys/net/core/bpf_jit_harden"

// JIT has the kernel blind constants while do runs, or not. The network namespace of the parent process may have the sysctl.
// Where it has not, the kernel stays as it is, and a test that needs it is skipped. No other test loads what takes longer by it.
func JIT(t *testing.T, blinds bool, do func()) {
	t.Helper()
	level := map[bool]string{true: "2", false: "0"}[blinds]
	err := cached.Alone(filepath.Join(os.TempDir(), "skep-hardened"), func() error {
		restore, err := set(level)
		if err != nil && blinds {
			t.Skipf("SKIPPED: constants cannot be blinded: %v", err)
		}
		if err == nil {
			defer func() {
				if err := restore(); err != nil {
					t.Error(err)
				}
			}()
		}
		do()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// set sets the sysctl by a process in the parent's network namespace, which sets it back when restore is called, or this
// process has ended.
func set(level string) (restore func() error, err error) {
	cmd := exec.CommandContext(context.Background(), "sh", "-c", "was=$(cat "+sysctl+") && echo "+level+" >"+sysctl+" && echo done && cat && echo $was >"+sysctl)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := inParents(cmd.Start); err != nil {
		return nil, err
	}
	restore = func() error {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("set %s back: %w", sysctl, err)
		}
		return nil
	}
	if n, _ := out.Read(make([]byte, 8)); n == 0 {
		return nil, restore()
	}
	return restore, nil
}

// inParents calls do on a thread in the network namespace of the parent process.
func inParents(do func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	others, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", os.Getppid()))
	if err != nil {
		return err
	}
	defer others.Close()
	if err := unix.Setns(int(others.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return errors.Join(do(), unix.Setns(int(own.Fd()), unix.CLONE_NEWNET))
}
