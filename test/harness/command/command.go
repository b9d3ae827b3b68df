// Package command builds Skep's commands for tests that run them as processes,
// as a Pod does, and reads what memory and processor time a process takes. It starts none.
package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/skep-dev/skep/test/harness/module"
)

// Build makes a command of cmd/ as the images do, and returns its path.
func Build(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", path, "./cmd/"+name)
	build.Dir, build.Env = module.Root(), append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
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
