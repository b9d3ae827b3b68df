package confined

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reserve is the private memory a Go process may need beside its heap, in bytes.
const reserve = 192 << 20

// raceOptions has a child of a binary with the race detector end at its first data
// race, before its answer can be believed, and otherwise as soon as it is done: by
// default the detector prints a race, goes on, and sleeps a second before the exit. Other
// binaries ignore it.
const raceOptions = "GORACE=halt_on_error=1 atexit_sleep_ms=0"

// binary is what a child executes: this process's own.
var binary = "/proc/self/exe"

// Execute has every child from here on be another binary that calls Serve for its role. It is for
// tests: a test binary with the race detector takes several times as long to start as what it tests.
func Execute(path string) { binary = path }

// ErrThreads is the error of a child for which there are too many processes or threads.
var ErrThreads = errors.New("no more processes and threads may be made here; end some, or raise the limit of the service or container (TasksMax of systemd, " +
	"pids.max of the cgroup)")

// ErrNested says that a child asked for a child of its own.
var ErrNested = errors.New("this process is a confined child itself")

// Process is a child as its parent sees it. Wait has to be called.
type Process struct {
	// Stdin is what the child reads, Stdout what it writes.
	Stdin  io.WriteCloser
	Stdout io.Reader

	cmd    *exec.Cmd
	stderr head
	reap   func()
	ended  chan struct{}
	exit   error
}

// Start starts this binary once more as a child of a role, which ends with ctx or
// with its parent.
func Start(ctx context.Context, role string) (*Process, error) {
	if os.Getenv(roleVariable) != "" {
		return nil, fmt.Errorf("start child %s: %w", role, ErrNested)
	}
	type start struct {
		process *Process
		err     error
	}
	started := make(chan start)
	reap := make(chan struct{})
	go func() {
		// The thread ends with this goroutine, and so not before the child.
		runtime.LockOSThread()
		p, err := startApart(ctx, role)
		if errors.Is(err, unix.EAGAIN) {
			err = fmt.Errorf("%w: %w", ErrThreads, err)
		}
		if err != nil {
			started <- start{err: fmt.Errorf("start child %s: %w", role, err)}
			return
		}
		p.reap, p.ended = sync.OnceFunc(func() { close(reap) }), make(chan struct{})
		started <- start{process: p}
		<-reap
		p.exit = p.cmd.Wait()
		close(p.ended)
	}()
	s := <-started
	return s.process, s.err
}

// startIn starts a child in namespaces of its own: with an environment of its
// own, and killed with ctx or with its parent.
func startIn(ctx context.Context, role string, namespaces uintptr) (*Process, error) {
	cmd := exec.CommandContext(ctx, binary)
	// The argument keeps a test binary whose TestMain does not call Serve from
	// running its tests once more.
	cmd.Args = []string{role, "-test.run=^$"}
	cmd.Dir = "/"
	// No GOMEMLIMIT: near it the collector would run without end, and what
	// takes too much memory would only be found out by the timeout.
	cmd.Env = []string{roleVariable + "=" + role, "GOGC=50", "GOTRACEBACK=none", raceOptions}
	// An interrupt at the terminal is for the parent alone: a child that it ended would
	// look like one that broke.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: namespaces, Setpgid: true}
	cmd.WaitDelay = time.Second
	p := &Process{cmd: cmd}
	cmd.Stderr = &p.stderr
	var err error
	if p.Stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if p.Stdout, err = cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

// Wait waits until the child ended, and says how. Whoever calls it has read all
// there is to read, or does not want it.
func (p *Process) Wait() Death {
	p.reap()
	<-p.ended
	return Death{Err: p.exit, Said: p.stderr.String()}
}

// Death is how a child ended.
type Death struct {
	// Err is nil where it ended by itself and well.
	Err error
	// Said is the beginning of what it wrote to its standard error.
	Said string
}

// memoryDeaths are what a process says that the kernel gave no more memory. Which of them it
// is depends on which thread asks first: often that is not the one that took too much.
var memoryDeaths = []string{
	// Watch, and the Go runtime of its heap.
	outOfMemory, "cannot allocate memory",
	// The Go runtime of a thread: without C by the number of ENOMEM, and by C, which says the same
	// where there is no memory for a stack and where there may be no more threads (pthread_create(3)).
	// Skep's binaries link no C, but those with the race detector do.
	"already; errno=12)", "pthread_create failed: Resource temporarily unavailable",
	// The race detector of its shadow memory, and the Go runtime of the addresses that have one.
	"failed to allocate", "Failed to mmap", "too many address space collisions",
}

// OutOfMemory reports whether the child ended because it took too much memory.
func (d Death) OutOfMemory() bool { return d.says(memoryDeaths...) }

// threadDeath is what the Go runtime says of a thread that the kernel refuses with EAGAIN.
const threadDeath = "already; errno=11)"

// OutOfThreads reports whether the child ended because no more processes and threads may be made
// where it runs. That is the doing of all that runs there, and not of its task.
func (d Death) OutOfThreads() bool { return d.says(threadDeath) }

// OutOfTime reports whether the child ended because it took too much time of CPUs.
func (d Death) OutOfTime() bool { return d.says(outOfTime) }

// StackOverflow reports whether the child ended because its stack grew too deep.
func (d Death) StackOverflow() bool { return d.says("stack exceeds", "stack overflow") }

// Cause is the first line of what the child said of its end.
func (d Death) Cause() string {
	first, _, _ := strings.Cut(d.Said, "\n")
	return first
}

func (d Death) says(any ...string) bool {
	return slices.ContainsFunc(any, func(s string) bool { return strings.Contains(d.Said, s) })
}

// head keeps the beginning and drops the rest of what is written to it: a Go crash
// says its cause first.
type head struct{ bytes.Buffer }

// Write never fails and keeps at most 4 KiB.
func (h *head) Write(p []byte) (int, error) {
	if room := 4<<10 - h.Len(); room > 0 {
		h.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
