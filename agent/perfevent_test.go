package agent_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/need"
)

// singleThread makes a process of one thread that wakes up every millisecond, until the
// test ends.
func singleThread(t testing.TB) int32 {
	t.Helper()
	parent := os.Getpid()
	runtime.LockOSThread()
	pid, errno := fork(uintptr(parent))
	runtime.UnlockOSThread()
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { end(t, int32(pid)) })
	return int32(pid)
}

// end kills a process of singleThread, if it runs.
func end(t testing.TB, pid int32) {
	t.Helper()
	if err := unix.Kill(int(pid), unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		t.Error(err)
	}
	if _, err := unix.Wait4(int(pid), nil, 0, nil); err != nil && !errors.Is(err, unix.ECHILD) {
		t.Error(err)
	}
}

// fork returns in the parent alone. The child has no Go runtime: it makes system calls
// only.
//
//go:norace
//go:nosplit
func fork(parent uintptr) (uintptr, syscall.Errno) {
	pause := unix.Timespec{Nsec: 1_000_000}
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	for {
		if is, _, _ := syscall.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); is != parent {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
	}
}

// sampled is an attachment to a perf event.
func sampled(e v1alpha1.PerfEvent) v1alpha1.Attachment {
	return v1alpha1.Attachment{Hook: "perf_event", PerfEvent: &e}
}

func TestAPerfEventFiresOnEveryCPU(t *testing.T) {
	a := fires(t, sampled(v1alpha1.PerfEvent{Event: "cpu-clock", Frequency: 99}), func() {})
	links := a.Status()[0].Programs[0].Links
	if len(links) != runtime.NumCPU() {
		t.Errorf("%d links on %d CPUs", len(links), runtime.NumCPU())
	}
	for i, l := range links {
		if want := fmt.Sprintf("cpu-clock 99 Hz (CPU %d)", i); l.Target != want || l.State != agent.Attached {
			t.Errorf("link %+v, want %s", l, want)
		}
	}
}

func TestAPerfEventFiresInOneProcess(t *testing.T) {
	pid := singleThread(t)
	a := fires(t, sampled(v1alpha1.PerfEvent{Event: "context-switches", Period: 10, PID: pid}), func() {})
	_, l := one(t, a)
	if want := fmt.Sprintf("context-switches every 10 (pid %d, thread %[1]d)", pid); l.Target != want {
		t.Errorf("link = %+v, want %s", l, want)
	}
	end(t, pid)
	until(t, "the link to go with the process", time.Minute, func() bool {
		a.Reconcile(t.Context())
		return runs(t, l.ID) == 0
	})
	if links := a.Status()[0].Programs[0].Links; len(links) != 1 || links[0].State != agent.Failed ||
		!strings.Contains(links[0].Error, fmt.Sprintf("find process %d: ", pid)) {
		t.Errorf("after the process ended: %+v", links)
	}
}

func TestACounterThatTheMachineLacksIsUnsupported(t *testing.T) {
	if _, err := os.Stat("/sys/bus/event_source/devices/cpu"); !errors.Is(err, fs.ErrNotExist) {
		t.Skipf("SKIPPED: this machine's processor has counters (%v)", err)
	}
	need.Kernel(t)
	w := newWorld(t)
	a, _ := w.start()
	err := w.accept(a, w.version("1", sampled(v1alpha1.PerfEvent{Event: "cpu-cycles", Frequency: 99})))
	want := (&attach.LackingError{
		Part: "counts no cpu-cycles: the machine has no such counter, as is usual in a virtual machine; name an event of the kernel, such as cpu-clock",
	}).Error()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the agent says %v, not %q", err, want)
	}
}
