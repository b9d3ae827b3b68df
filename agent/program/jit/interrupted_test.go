package jit

import (
	"errors"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// TestAKernelThatIsAlwaysInterruptedIsNotAskedForEver has each load of a thread fail with EAGAIN, which the thread ends with.
func TestAKernelThatIsAlwaysInterruptedIsNotAskedForEver(t *testing.T) {
	need.Kernel(t)
	answered := make(chan error, 1)
	go func() {
		// Without an unlock, the thread ends with this function.
		runtime.LockOSThread()
		if err := interruptLoads(); err != nil {
			answered <- err
			return
		}
		if !ask() {
			t.Error("without an answer constants do not count")
		}
		_, err := load(probe())
		answered <- err
	}()
	select {
	case err := <-answered:
		if !errors.Is(err, unix.EAGAIN) {
			t.Errorf("load = %v, want EAGAIN", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it is asked for ever")
	}
}

// interruptLoads has every BPF_PROG_LOAD of this thread fail with EAGAIN (seccomp(2)).
func interruptLoads() error {
	const number, command = 0, 16
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_BPF, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: command},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.BPF_PROG_LOAD, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAGAIN)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return errno
	}
	return nil
}
