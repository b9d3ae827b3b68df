package confined

import (
	"fmt"
	"io"
	"os"
	"runtime/metrics"
	"time"
)

// roleVariable names the role of a child in its environment. It is set nowhere
// else.
const roleVariable = "SKEP_CONFINED_ROLE"

// outOfMemory is what a child says of itself, in the words the Go runtime has
// for it.
const outOfMemory = "out of memory"

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

// Limit bounds this process from now on: its heap to so many bytes, its other
// memory to about as much again, its open files to a few. It ends the process
// where the heap outgrows the limit. It is called once.
func (c *Child) Limit(memory int64) error {
	if err := setLimits(memory, c.statm); err != nil {
		return err
	}
	go watchMemory(memory)
	return nil
}

// watchMemory ends this process where its heap outgrows the limit. The limits
// of the kernel are only the net below: Go does not always meet them with a
// message of its own.
func watchMemory(limit int64) {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	for range time.Tick(20 * time.Millisecond) {
		metrics.Read(heap)
		if heap[0].Value.Uint64() > uint64(limit) {
			fmt.Fprintln(os.Stderr, outOfMemory)
			os.Exit(1)
		}
	}
}
