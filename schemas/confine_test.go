package schemas_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/test/harness/need"
)

// startRenderer has a renderer busy with a loop that never ends, for the test to
// look at from outside, and returns its process once it took the job.
func startRenderer(t *testing.T) (pid int) {
	t.Helper()
	dir := source(t, "-- a.cue --\n"+loop)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := schemas.Load(ctx, schemas.Options{Root: dir, Timeout: time.Hour})
		if ctx.Err() == nil {
			t.Errorf("load: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	waitFor(t, "the renderer to be confined", func() bool {
		for _, child := range children(t, os.Getpid()) {
			limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", child))
			// The limit on files is what it sets last, see confined.Child.Limit.
			if err == nil && strings.Contains(strings.Join(strings.Fields(string(limits)), " "), "Max open files 32 32") {
				pid = child
			}
		}
		return pid != 0
	})
	return pid
}

// processStatus is /proc/PID/status by field.
func processStatus(t *testing.T, pid int) map[string]string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		fields[key] = strings.Join(strings.Fields(value), " ")
	}
	return fields
}

func TestRendererHoldsNoRight(t *testing.T) {
	status := processStatus(t, startRenderer(t))
	want := map[string]string{"NoNewPrivs": "1"}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		want[set] = "0000000000000000"
	}
	if effective, err := strconv.ParseUint(processStatus(t, os.Getpid())["CapEff"], 16, 64); err != nil {
		t.Fatal(err)
	} else if os.Geteuid() == 0 && effective&(1<<unix.CAP_SYS_ADMIN) != 0 {
		want["Uid"], want["Gid"], want["Groups"] = "65534 65534 65534 65534", "65534 65534 65534 65534", ""
	}
	for field, value := range want {
		if status[field] != value {
			t.Errorf("%s is %q, want %q", field, status[field], value)
		}
	}
}

func TestRendererSeesNoNetworkAndNoProcess(t *testing.T) {
	need.Kernel(t)
	pid := startRenderer(t)
	for _, ns := range []string{"net", "ipc", "uts", "pid"} {
		mine, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		if err != nil {
			t.Fatal(err)
		}
		if mine == its {
			t.Errorf("the renderer shares the %s namespace", ns)
		}
	}
}

func TestRendererInheritsNothing(t *testing.T) {
	t.Setenv("SKEP_TEST_SECRET", "hunter2")
	secret, err := os.Create(filepath.Join(t.TempDir(), "secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	// Unlike Go's own files, a duplicate is handed on to a new program.
	leak, err := unix.Dup(int(secret.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	pid := startRenderer(t)
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || strings.Contains(string(env), "hunter2") {
		t.Errorf("environment: %q, %v", env, err)
	}
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(open) == 0 {
		t.Fatalf("open files: %v, %v", open, err)
	}
	for _, fd := range open {
		if target, err := os.Readlink(fd); err == nil && target == secret.Name() {
			t.Errorf("the renderer holds %s, which it was not given", target)
		}
	}
}
