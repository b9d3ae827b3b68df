package confined

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/metrics"
	"sync"
	"syscall"
	"time"
)

// roleVariable names the role of a child in its environment. It is set nowhere
// else.
const roleVariable = "SKEP_CONFINED_ROLE"

// What a child says of its end: of memory in the words the Go runtime has for it.
const (
	outOfMemory = "out of memory"
	outOfTime   = "out of time"
)

// Child is this process, where a parent started it.
type Child struct {
	// In is what the parent writes, Out what it reads.
	In  io.Reader
	Out io.Writer

	statm io.Reader
}

// Serve turns this process into a child where its parent started it in that
// role; then it never returns. It gives up what it was not given on purpose, and
// calls serve. Every binary that starts children of a role calls Serve first
// thing in main, and so does the TestMain of their tests.
func Serve(role string, serve func(*Child) error) {
	if os.Getenv(roleVariable) != role {
		return
	}
	if err := run(serve); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run is the child.
func run(serve func(*Child) error) error {
	// Opened while files can be, read when the task is in memory.
	statm, err := os.Open("/proc/self/statm")
	if err != nil {
		return fmt.Errorf("limit the process: %w", err)
	}
	defer statm.Close()
	if err := isolate(); err != nil {
		return err
	}
	return serve(&Child{In: os.Stdin, Out: os.Stdout, statm: statm})
}

// Limit has the kernel bound this process for good: its memory to twice a heap of so
// many bytes and some more, its open files to a few. It is called once. Go does not
// always meet these limits with a message of its own, so they are the net below Watch.
func (c *Child) Limit(memory int64) error { return setLimits(memory, c.statm) }

// watchInterval is how often a process looks at what it uses.
const watchInterval = 5 * time.Millisecond

// Watch ends this process where its heap outgrows so many bytes, or where it takes
// more than so much time of CPUs from now on, unless that is 0; until stop is called.
// The limits of the kernel are only the net below: Go does not always meet them with
// a message of its own.
func Watch(heap int64, cpu time.Duration) (stop func()) {
	w := &watch{heap: uint64(heap), cpu: cpu, began: CPUTime()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = time.AfterFunc(watchInterval, w.look)
	return w.stop
}

// ErrSpent is the cause of a context that ended because this process took its time of CPUs.
var ErrSpent = errors.New("it took its time of a processor")

// Spend returns a context that ends, with the cause ErrSpent, once this process took more than so
// much time of CPUs from now on. What else a machine does ends nothing.
func Spend(ctx context.Context, cpu time.Duration) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	began := CPUTime()
	go func() {
		look := time.NewTicker(watchInterval)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
				if CPUTime()-began > cpu {
					end(ErrSpent)
				}
			}
		}
	}()
	return ctx, func() { end(nil) }
}

// watch is what Watch looks at. It wakes nobody where it is stopped before the first
// look.
type watch struct {
	heap       uint64
	cpu, began time.Duration

	// mu guards what follows.
	mu      sync.Mutex
	next    *time.Timer
	stopped bool
}

// look looks once, and again after a while.
func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	w.end()
	w.next.Reset(watchInterval)
}

// end ends this process where it takes too much.
func (w *watch) end() {
	objects := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(objects)
	switch {
	case objects[0].Value.Uint64() > w.heap:
		fmt.Fprintln(os.Stderr, outOfMemory)
		os.Exit(1)
	case w.cpu > 0 && CPUTime()-w.began > w.cpu:
		fmt.Fprintln(os.Stderr, outOfTime)
		os.Exit(1)
	}
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.next.Stop()
}

// CPUTime is the time of CPUs that this process took so far.
func CPUTime() time.Duration {
	var u syscall.Rusage
	// It fails for no argument that is given here.
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
