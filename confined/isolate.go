package confined

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// nobody is the user and the group a child has where its parent is root.
const nobody = 65534

// apart are the namespaces a child is alone in: no network, no other
// process to signal, no shared memory.
const apart = unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// isolations are the namespaces to start a child in, the best first. The
// second needs no right: a user namespace that maps nobody, in which the program
// has no capability either. Where the kernel or a container allows neither, the
// third stays.
var isolations = [...]uintptr{apart, unix.CLONE_NEWUSER | apart, 0}

// startApart starts a child in as many namespaces as this process may make, and so
// that nothing it executes gains a right. The calling goroutine has to be locked to
// its thread, which must not serve another afterwards: the death signal is tied to
// it (golang/go#27505), and what is set here is for good.
func startApart(ctx context.Context, role string) (*Process, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("set no_new_privs: %w", err)
	}
	var refused error
	for _, flags := range isolations {
		p, err := startIn(ctx, role, flags)
		if err == nil {
			return p, nil
		}
		refused = err
	}
	return nil, refused
}

// isolate takes from this process, before it reads anything of its task, what
// it was not given on purpose: open files, the file system, capabilities and,
// where it is root, the user. A service or a container may lack the right to some
// of it; the other steps and the limits of Child.Limit then stay.
func isolate() error {
	if err := closeInherited(); err != nil {
		return fmt.Errorf("isolate the process: %w", err)
	}
	if err := forbidFiles(); err != nil {
		return fmt.Errorf("isolate the process: forbid files: %w", err)
	}
	if err := becomeNobody(); err != nil {
		return fmt.Errorf("isolate the process: become user %d: %w", nobody, err)
	}
	if err := dropCapabilities(); err != nil {
		return fmt.Errorf("isolate the process: drop capabilities: %w", err)
	}
	// A change of user takes the death signal back.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("isolate the process: %w", err)
	}
	stdout := []unix.PollFd{{Fd: 1}}
	if _, err := unix.Poll(stdout, 0); err == nil && stdout[0].Revents != 0 {
		return fmt.Errorf("isolate the process: the parent is gone")
	}
	return nil
}

// closeInherited closes the files beyond the standard ones that came through
// the exec: Go's own close on one, so those that would not are somebody else's.
func closeInherited() error {
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return err
	}
	for _, name := range open {
		fd, err := strconv.Atoi(filepath.Base(name))
		if err != nil || fd <= 2 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
	return nil
}

// forbidFiles has the kernel reject every thread every file and every TCP
// connection from here on, by a Landlock ruleset without a rule. Kernels without
// Landlock, and binaries that link C, go on without.
func forbidFiles() error {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || abi < 1 {
		return nil
	}
	// What each version of the interface added, see landlock(7).
	added := []uint64{13, 1, 1, 0, 1}
	var bits uint64
	for _, n := range added[:min(int(abi), len(added))] {
		bits += n
	}
	rules := unix.LandlockRulesetAttr{Handled_access_fs: 1<<bits - 1}
	if abi >= 4 {
		rules.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	//nolint:gosec // The system call takes an address.
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), unsafe.Sizeof(rules), 0)
	if errno != 0 {
		return errno
	}
	defer func() { _ = unix.Close(int(fd)) }()
	if _, _, errno = syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 && errno != syscall.ENOTSUP {
		return errno
	}
	return nil
}

// becomeNobody gives up the user where this process may do so and its parent,
// which has the same capabilities, can still kill it afterwards.
func becomeNobody() error {
	const needed = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL
	var sets [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]); err != nil {
		return err
	}
	if sets[0].Effective&needed != needed {
		return nil
	}
	return errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody))
}

// dropCapabilities empties the sets of every thread. A binary that links C
// cannot; there only the change of user does.
func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	//nolint:gosec // The system call takes addresses.
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	if errno != 0 && errno != syscall.ENOTSUP {
		return errno
	}
	return nil
}

// setLimits takes from this process what its task needs no part in: memory far
// beyond the limit, new files, files to write, core dumps. RLIMIT_DATA counts
// private writable memory and not the address space Go merely reserves; what
// the process has already, by statm, does not count against the limit.
func setLimits(memory int64, statm io.Reader) error {
	used, err := dataBytes(statm)
	if err != nil {
		return fmt.Errorf("limit the process: %w", err)
	}
	for _, r := range []struct {
		resource int
		limit    uint64
	}{
		{syscall.RLIMIT_DATA, used + dataFactor*uint64(memory) + reserve},
		{syscall.RLIMIT_FSIZE, 0},
		{syscall.RLIMIT_CORE, 0},
		{syscall.RLIMIT_NOFILE, 32},
	} {
		if err := syscall.Setrlimit(r.resource, &syscall.Rlimit{Cur: r.limit, Max: r.limit}); err != nil {
			return fmt.Errorf("limit the process: %w", err)
		}
	}
	return nil
}

// dataBytes is the private writable memory a process has mapped: the sixth
// field of /proc/self/statm, see proc_pid_statm(5).
func dataBytes(statm io.Reader) (uint64, error) {
	var pages [6]uint64
	if _, err := fmt.Fscan(statm, &pages[0], &pages[1], &pages[2], &pages[3], &pages[4], &pages[5]); err != nil {
		return 0, err
	}
	return pages[5] * uint64(os.Getpagesize()), nil
}
