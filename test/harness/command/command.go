// Package command has Skep's commands for tests that run them as processes, as a Pod does, and
// reads what memory and processor time a process takes. It starts none.
//
// Every binary is linked once for all tests, runs and clones whose sources make the same: by go run,
// which keeps what it links in Go's cache under a hash of all that goes into it, and looks there
// first. What lies there is never overwritten, and Go removes what nobody took for days.
package command

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/skep-dev/skep/test/harness/cached"
	"github.com/skep-dev/skep/test/harness/module"
)

// Build returns the path of a command of cmd/ in a folder of the test's, linked as the images' are.
func Build(t testing.TB, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := Place(t.Context(), dir, "./cmd/"+name); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// Place puts a binary into a folder, by the arguments of Cached.
func Place(ctx context.Context, dir string, args ...string) error {
	binary, err := Cached(ctx, args...)
	if err != nil {
		return err
	}
	// Another process writes the file: one that this process had open for writing could not be run
	// while a child that it starts at the same time still has it open.
	if out, err := exec.CommandContext(ctx, "cp", binary, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("place %s: %w: %s", filepath.Base(binary), err, out)
	}
	return nil
}

// found are the paths that this process was told, by arguments: sources do not change meanwhile.
var found sync.Map

// Cached returns the path of a binary in Go's cache, by the arguments of go run in this module's
// folder: flags, and a main package last. It is static, has no symbols unless a flag says
// -ldflags=-s=false, and is linked with the tag of the images'. Another user than this process's may
// find no way to it, but to a place elsewhere.
func Cached(ctx context.Context, args ...string) (string, error) {
	key := strings.Join(args, "\x00")
	if path, ok := found.Load(key); ok {
		return path.(string), nil
	}
	path, err := find(ctx, args)
	if err == nil {
		found.Store(key, path)
	}
	return path, err
}

// find is Cached, asking the Go command.
func find(ctx context.Context, args []string) (string, error) {
	name := args[len(args)-1]
	lock, err := cached.Path("link-" + filepath.Base(name))
	if err != nil {
		return "", err
	}
	var path string
	err = cached.Alone(lock, func() error {
		// Where it is linked only now, go run names a file that it removes when it ends. The second call
		// finds the one that it has kept.
		for range 2 {
			if path, err = keep(ctx, args); err != nil {
				return fmt.Errorf("build %s: %w", name, err)
			}
			if _, err = os.Stat(path); err == nil {
				return nil
			}
		}
		return fmt.Errorf("find %s in Go's cache: %w", name, err)
	})
	return path, err
}

// keep has go run link a binary, where its cache has none, and print its path instead of running it.
func keep(ctx context.Context, args []string) (string, error) {
	run := exec.CommandContext(ctx, "go", append([]string{"run", "-exec", "echo", "-tags", "grpcnotrace"}, args...)...)
	// Whatever the caller's flags, and without the race detector's cgo.
	run.Dir, run.Env = module.Root(), append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	var complaint bytes.Buffer
	run.Stderr = &complaint
	out, err := run.Output()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, &complaint)
	}
	return strings.TrimSpace(string(out)), nil
}

// Memory is what a process takes, in MB of 1,000,000 bytes.
type Memory struct {
	// Resident is all that is in memory now (VmRSS), Own the part of it that is
	// no file's (RssAnon).
	Resident, Own float64
	// Peak is the most that was ever resident (VmHWM).
	Peak float64
}

// MemoryOf reads what a process takes from /proc.
func MemoryOf(t testing.TB, pid int) Memory {
	t.Helper()
	status, err := process(t, pid).NewStatus()
	if err != nil {
		t.Fatal(err)
	}
	return Memory{Resident: float64(status.VmRSS) / 1e6, Own: float64(status.RssAnon) / 1e6, Peak: float64(status.VmHWM) / 1e6}
}

// CPUOf returns how much processor time all threads of a process took since it began,
// to a hundredth of a second.
func CPUOf(t testing.TB, pid int) time.Duration {
	t.Helper()
	stat, err := process(t, pid).Stat()
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(stat.CPUTime() * float64(time.Second))
}

// CPUOfSelf returns CPUOf this process and of its children that run the same binary,
// which are its confined workers.
func CPUOfSelf(t testing.TB) time.Duration {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	all, err := procfs.AllProcs()
	if err != nil {
		t.Fatal(err)
	}
	sum := CPUOf(t, os.Getpid())
	for _, p := range all {
		if stat, err := p.Stat(); err != nil || stat.PPID != os.Getpid() {
			continue
		}
		if runs, err := p.Executable(); err == nil && runs == binary {
			sum += CPUOf(t, p.PID)
		}
	}
	return sum
}

func process(t testing.TB, pid int) procfs.Proc {
	t.Helper()
	p, err := procfs.NewProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
