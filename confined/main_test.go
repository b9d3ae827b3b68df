package confined

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// isolatedVariable makes the test binary a process that isolates itself and
// tries to make the file it names.
const isolatedVariable = "SKEP_CONFINED_TEST_ISOLATED"

// The roles of the tests: one echoes its input, one does so after a data race, the
// others take memory or time until they are ended.
const (
	roleEcho    = "skep-test-echo"
	roleRacing  = "skep-test-racing"
	roleHungry  = "skep-test-hungry"
	roleGreedy  = "skep-test-greedy"
	roleThreads = "skep-test-threads"
	roleCrowded = "skep-test-crowded"
	roleBusy    = "skep-test-busy"
)

func TestMain(m *testing.M) {
	Serve(roleEcho, echo)
	Serve(roleRacing, func(c *Child) error {
		var (
			n  int
			wg sync.WaitGroup
		)
		wg.Go(func() { n++ })
		n++
		wg.Wait()
		return echo(c)
	})
	Serve(roleHungry, func(c *Child) error {
		if err := c.Limit(64 << 20); err != nil {
			return err
		}
		defer Watch(64<<20, 0)()
		var all [][]byte
		for {
			all = append(all, make([]byte, 1<<20))
			if len(all) > 1<<20 {
				return fmt.Errorf("nothing ended it after %d MiB", len(all))
			}
		}
	})
	// More at once than any address space of the race detector has: no look comes before it.
	Serve(roleGreedy, func(c *Child) error {
		if err := c.Limit(64 << 20); err != nil {
			return err
		}
		return fmt.Errorf("nothing ended it with %d bytes", len(make([]byte, size(1<<45))))
	})
	// Memory is at its limit where the runtime needs a thread.
	Serve(roleThreads, func(c *Child) error {
		if err := c.Limit(1 << 20); err != nil {
			return err
		}
		takeThreads()
		return nil
	})
	// As many threads as there may be, and memory for more.
	Serve(roleCrowded, func(*Child) error {
		few := unix.Rlimit{Cur: 1, Max: 1}
		if err := unix.Setrlimit(unix.RLIMIT_NPROC, &few); err != nil {
			return err
		}
		takeThreads()
		return nil
	})
	Serve(roleBusy, func(*Child) error {
		Watch(64<<20, 100*time.Millisecond)
		for {
			runtime.Gosched()
		}
	})
	if file := os.Getenv(isolatedVariable); file != "" {
		if err := reachOut(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// takeThreads makes threads until it is ended.
func takeThreads() {
	for range 10_000 {
		go func() {
			runtime.LockOSThread()
			select {}
		}()
	}
	for {
		runtime.Gosched()
	}
}

// size hides from the compiler how much memory is asked for.
//
//go:noinline
func size(n int) int { return n }

func echo(c *Child) error {
	_, err := io.Copy(c.Out, c.In)
	return err
}
