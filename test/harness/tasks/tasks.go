// Package tasks makes cgroups and has processes in them make system calls, for tests of
// what runs for some tasks alone.
//
// It owns how the processes are told what to do. They are the test's own binary, which
// calls Main first.
package tasks

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

// child is the environment variable of a process that does what it is told to.
const child = "SKEP_TEST_TASK"

// Main is what a package's TestMain does: it runs the tests as leaks.Main, or is a task of
// one. It never returns.
func Main(m *testing.M) {
	if os.Getenv(child) != "" {
		os.Exit(serve())
	}
	leaks.Main(m)
}

// serve makes system calls, as often as each line of the input says, and answers each.
func serve() int {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var call string
		var times int
		if _, err := fmt.Sscan(in.Text(), &call, &times); err != nil {
			return 1
		}
		answer := "done"
		for range times {
			if err := do(call); err != nil {
				answer = "denied"
			}
		}
		fmt.Println(answer)
	}
	return 0
}

// do makes a system call once.
func do(call string) error {
	if root, is := strings.CutPrefix(call, "chroot:"); is {
		return unix.Chroot(root)
	}
	if call == "connect" {
		return connect(9)
	}
	if port, is := strings.CutPrefix(call, "connect:from:"); is {
		return connectsFrom(port)
	}
	if call == "connect:tcp" {
		return connects(unix.SOCK_STREAM, 9)
	}
	if port, is := strings.CutPrefix(call, "connect:"); is {
		n, err := strconv.Atoi(port)
		if err != nil {
			return err
		}
		return connect(n)
	}
	if port, is := strings.CutPrefix(call, "bind:"); is {
		n, err := strconv.Atoi(port)
		if err != nil {
			return err
		}
		return bind(n)
	}
	if path, is := strings.CutPrefix(call, "hand:"); is {
		return hand(path)
	}
	if call == "getsockopt" {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		return errors.Join(err, unix.Close(fd))
	}
	if call == "getpgid" {
		_, err := unix.Getpgid(os.Getpid())
		return err
	}
	fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Task is a process in a cgroup.
type Task struct {
	t   testing.TB
	pid int
	in  io.WriteCloser
	out *bufio.Reader
	// wait waits for its end.
	wait func() error
}

// connect connects a socket to a port of this machine.
func connect(port int) error { return connects(unix.SOCK_DGRAM, port) }

// connects does so with a socket of a type.
func connects(kind, port int) error {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}), unix.Close(fd))
}

// connectsFrom connects a socket, and fails unless it has a port of its own then.
func connectsFrom(port string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	if is, ok := own.(*unix.SockaddrInet4); !ok || strconv.Itoa(is.Port) != port {
		return fmt.Errorf("it is connected from %+v", own)
	}
	return nil
}

// bind binds a socket to a port as a user without capabilities.
func bind(port int) error {
	done := make(chan error)
	go func() {
		// The thread ends with the function.
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 12345, 12345, 12345); errno != 0 {
			done <- errno
			return
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}), unix.Close(fd))
		}
		done <- err
	}()
	return <-done
}

// hand connects to the server at a path, and hands it a socket that this process made.
func hand(path string) error {
	server, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	made, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return errors.Join(err, unix.Close(server))
	}
	err = unix.Connect(server, &unix.SockaddrUnix{Name: path})
	if err == nil {
		err = unix.Sendmsg(server, []byte{0}, unix.UnixRights(made), nil, 0)
	}
	return errors.Join(err, unix.Close(made), unix.Close(server))
}

// Ends ends the process, and waits until it is gone.
func (p *Task) Ends() {
	_ = p.in.Close()
	_ = p.wait()
}

// Start starts a process in the cgroup, until the test ends.
func Start(t testing.TB, cgroup string) *Task {
	t.Helper()
	return start(t, cgroup, 0)
}

// StartApart does so with a network namespace of its own.
func StartApart(t testing.TB, cgroup string) *Task {
	t.Helper()
	return start(t, cgroup, unix.CLONE_NEWNET)
}

func start(t testing.TB, cgroup string, flags uintptr) *Task {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: flags}
	cmd.Env = append(os.Environ(), child+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	Into(t, cmd, cgroup, (*exec.Cmd).Start)
	task := &Task{t: t, pid: cmd.Process.Pid, in: in, out: bufio.NewReader(out), wait: cmd.Wait}
	// The test's context ended it, if the end of its input did not.
	t.Cleanup(task.Ends)
	return task
}

// Into starts a command in a cgroup, or runs it there.
func Into(t testing.TB, cmd *exec.Cmd, cgroup string, start func(*exec.Cmd) error) {
	t.Helper()
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	if err := errors.Join(start(cmd), dir.Close()); err != nil {
		t.Fatal(err)
	}
}

// Does has the process make a system call many times: getpgid, open, getsockopt, connect or
// connect:PORT, connect:from:PORT, bind:PORT, or hand:PATH.
func (p *Task) Does(call string, times int) {
	p.t.Helper()
	if answer := p.ask(call, times); answer != "done" {
		p.t.Fatalf("the process says %s of %s", answer, call)
	}
}

// Can reports whether the process can make a system call.
func (p *Task) Can(call string) bool {
	p.t.Helper()
	return p.ask(call, 1) == "done"
}

func (p *Task) ask(call string, times int) string {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, call, times); err != nil {
		p.t.Fatal(err)
	}
	answer, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("read what the process says: %v", err)
	}
	return strings.TrimSpace(answer)
}

// PID is the id of the process.
func (p *Task) PID() int { return p.pid }

// Enters gives the process another root.
func (p *Task) Enters(root string) { p.Does("chroot:"+root, 1) }

// Moves moves the process to another cgroup.
func (p *Task) Moves(cgroup string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), fmt.Append(nil, p.pid), 0); err != nil {
		p.t.Fatal(err)
	}
}

// Root is where cgroup2 is mounted. Where tests may not use the kernel, the test is skipped.
func Root(t testing.TB) string {
	t.Helper()
	need.Kernel(t)
	return need.Cgroup(t)
}

// Cgroup makes a cgroup below the root, or below another one, until the test ends.
func Cgroup(t testing.TB, path string) string {
	t.Helper()
	dir := path
	if !strings.HasPrefix(path, "/") {
		dir = filepath.Join(Root(t), path)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A process that ended leaves its cgroup a moment later.
		var err error = unix.EBUSY
		for errors.Is(err, unix.EBUSY) {
			err = unix.Rmdir(dir)
		}
		if err != nil {
			t.Errorf("remove cgroup %s: %v", dir, err)
		}
	})
	return dir
}
