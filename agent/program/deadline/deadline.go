// Package deadline bounds how long the kernel's verifier works on what one function loads.
//
// A load is one system call, which the verifier leaves only when a signal is pending (do_check in
// kernel/bpf/verifier.c). It answers EAGAIN then, and the library begins anew, so a signal alone
// ends nothing. The function therefore runs on a thread of its own whose calls of BPF_PROG_LOAD the
// kernel asks this process about (seccomp_unotify(2)): when the time is up they fail with ETIME.
package deadline

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// again is how long the thread has between two signals. The verifier looks for one at each instruction.
const again = 10 * time.Millisecond

// Within calls f on a thread of its own. Once that thread has used most of processor time since its
// first BPF_PROG_LOAD, this and each further one fails with ETIME, and Within reports so. It returns
// when f has. The work that the kernel does after the verifier's walk is not ended, see bytecode.WorkOf.
//
// An error says why f ran without a bound, as where the kernel has no seccomp.
func Within(most time.Duration, f func()) (isOver bool, err error) { return within(most, f, listen) }

func within(most time.Duration, f func(), listen func() (int, error)) (isOver bool, err error) {
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		f()
		return false, fmt.Errorf("bound a load: %w", err)
	}
	defer func() { _ = unix.Close(stop) }()
	started, ended := make(chan *thread), make(chan struct{})
	go onThread(func() {
		defer close(ended)
		defer func() { _, _ = unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }()
		t := &thread{id: unix.Gettid(), stop: stop, most: most}
		t.listener, t.err = listen()
		started <- t
		f()
	})
	t := <-started
	if t.err == nil {
		isOver = t.watch()
		_ = unix.Close(t.listener)
	}
	<-ended
	if t.err != nil {
		return false, fmt.Errorf("bound a load: %w", t.err)
	}
	return isOver, nil
}

// onThread calls f on a thread that ends with it, and with the filter that it is given. The first thread of a process never
// ends, and /proc/PID/status tells of it.
func onThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	defer runtime.UnlockOSThread()
	elsewhere := make(chan bool)
	go onThread(func() {
		close(elsewhere)
		f()
	})
	<-elsewhere
}

// thread is one that loads.
type thread struct {
	id int
	// listener tells of its loads, and stop of its end.
	listener, stop int
	most           time.Duration
	err            error
}

// watch answers the thread's loads until it ends, and reports whether the time was up before.
func (t *thread) watch() (isOver bool) {
	var ends time.Duration
	for {
		wait := forEver
		switch used := t.used(); {
		case isOver:
			_ = unix.Tgkill(unix.Getpid(), t.id, unix.SIGURG)
			wait = again
		case ends > 0 && used >= ends:
			isOver = true
			continue
		case ends > 0:
			wait = max(ends-used, time.Millisecond)
		}
		asked, ended := t.awaitEnd(wait)
		if ended {
			return isOver
		}
		if asked {
			t.answer(isOver)
			if ends == 0 {
				ends = t.used() + t.most
			}
		}
	}
}

// forEver is no bound of a wait, as poll(2) has it in milliseconds.
const forEver = -time.Millisecond

// awaitEnd waits for a load of the thread or its end, at most that long.
func (t *thread) awaitEnd(most time.Duration) (asked, ended bool) {
	on := []unix.PollFd{{Fd: int32(t.stop), Events: unix.POLLIN}, {Fd: int32(t.listener), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(on, int(most.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return on[1].Revents&unix.POLLIN != 0, on[0].Revents != 0
		}
	}
}

// used is the processor time of the thread.
func (t *thread) used() time.Duration {
	// As pthread_getcpuclockid(3) names the clock of a thread.
	const ofThread = 6
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^t.id<<3|ofThread), &at); err != nil {
		return 0
	}
	return time.Duration(at.Nano())
}

// request and response are struct seccomp_notif and seccomp_notif_resp of linux/seccomp.h.
type request struct {
	id         uint64
	pid, flags uint32
	_          [64]byte
}

type response struct {
	id    uint64
	_     int64
	err   int32
	flags uint32
}

const goOn = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE

// answer has the load that the thread waits with go on, or fail. The thread may have stopped waiting.
func (t *thread) answer(isOver bool) {
	var asked request
	if t.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&asked)) != 0 { //nolint:gosec // struct seccomp_notif
		return
	}
	says := response{id: asked.id, flags: goOn}
	if isOver {
		says.err, says.flags = -int32(unix.ETIME), 0
	}
	_ = t.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&says)) //nolint:gosec // struct seccomp_notif_resp
}

func (t *thread) ioctl(command uintptr, about unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(t.listener), command, uintptr(about))
	return errno
}

// listen has this thread ask before each BPF_PROG_LOAD, and returns where it asks.
func listen() (int, error) {
	const (
		// Of struct seccomp_data: the system call, and its first argument on a little-endian machine.
		number, command = 0, 16
		progLoad        = 5
	)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_BPF, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: command},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: progLoad, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// For this thread alone, and needed where it has no CAP_SYS_ADMIN.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, uintptr(unsafe.Pointer(&program))) //nolint:gosec // struct sock_fprog
	runtime.KeepAlive(filter)
	if errno != 0 {
		return 0, fmt.Errorf("seccomp(2): %w", errno)
	}
	return int(listener), nil
}
