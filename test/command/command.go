// Package command builds Skep's commands for tests that run them as processes,
// as a Pod does, and reads what memory and processor time a process takes. It starts none.
package command

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/test/controlplane"
)

// Build makes a command of cmd/ as the images do, and returns its path.
func Build(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", path, "./cmd/"+name)
	build.Dir, build.Env = controlplane.Root(), append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
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
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var m Memory
	for field, to := range map[string]*float64{"VmRSS": &m.Resident, "RssAnon": &m.Own, "VmHWM": &m.Peak} {
		_, rest, _ := strings.Cut(string(status), "\n"+field+":")
		value, _, _ := strings.Cut(rest, "kB")
		kib, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			t.Fatalf("read %s of process %d: %v", field, pid, err)
		}
		*to = kib * 1024 / 1e6
	}
	return m
}

// CPUOf returns how much processor time all threads of a process took since it began,
// to a hundredth of a second.
func CPUOf(t testing.TB, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The name of the program, in parentheses, may have spaces.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime, see proc_pid_stat(5)
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
