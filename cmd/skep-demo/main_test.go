package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/workers"
)

// TestMain makes the test binary the command skep-demo, and the child processes of it.
func TestMain(m *testing.M) {
	leaks.MaybeProbe()
	schemas.MaybeRenderChild()
	policies.MaybeWorkerChild()
	workers.Use()
	testscript.Main(leaks.M{M: m}, map[string]func(){"skep-demo": main})
}

// TestCommands runs every script of testdata.
func TestCommands(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("NO_COLOR", "1")
			return nil
		},
		Condition: func(cond string) (bool, error) { return cond == "root" && leaks.Isolated(), nil },
	})
}

// demoProcess is the demo as a terminal starts it: the leader of a process group. All that it
// writes to disk goes to the folder that is returned.
func demoProcess(t *testing.T, args ...string) (cmd *exec.Cmd, folder string) {
	t.Helper()
	need.Kernel(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	//nolint:usetesting // The name of a test would make the path of a socket too long for the kernel.
	if folder, err = os.MkdirTemp("", "demo-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	cmd = exec.CommandContext(ctx, self, args...)
	cmd.Args[0], cmd.Env = "skep-demo", append(os.Environ(), "TMPDIR="+folder, "NO_COLOR=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, folder
}

// gone fails where a folder holds anything, or a process still plays in it. Programs, links and
// pins are held by the namespaces of that process and go with it.
func gone(t *testing.T, folder string) {
	t.Helper()
	left, err := os.ReadDir(folder)
	if err != nil || len(left) > 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if line, err := os.ReadFile(p); err == nil && bytes.Contains(line, []byte(folder)) {
			t.Errorf("%s still runs: %q", p, line)
		}
	}
}

func TestTheDemoInterruptedSaysSoOnceAndCleansUp(t *testing.T) {
	for name, at := range map[string]struct{ args, line string }{
		"while it sets the stage": {"", ""},
		"while a program runs":    {"", "2. Send real packets"},
		"while it is looked at":   {"--keep", "the definitions: "},
		"while it updates":        {"", "3. Commit a new version"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, folder := demoProcess(t, strings.Fields(at.args)...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if at.line == "" {
				awaitChild(t, folder)
			}
			told := bufio.NewScanner(out)
			for at.line != "" && told.Scan() && !strings.Contains(told.Text(), at.line) {
				continue
			}
			if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, out); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
				t.Errorf("it ends with %v, want exit code 130", err)
			}
			if stderr.String() != "skep-demo: interrupted\n" {
				t.Errorf("it says %q, want one line", stderr.String())
			}
			gone(t, folder)
		})
	}
}

// awaitChild waits for the folder that the demo plays in.
func awaitChild(t *testing.T, folder string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		if made, err := filepath.Glob(filepath.Join(folder, "*", "*")); err == nil && len(made) > 0 {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Error("it did not begin")
}

// passing is what is another thing each time: commits, times, and ids of programs.
var passing = regexp.MustCompile(`commit [0-9a-f]{8}|in [0-9]+ ms|kernel id [0-9]+`)

// withoutTCX is told on a kernel that lacks TCX, tooSlow on a busy machine.
const (
	withoutTCX = "left out: "
	tooSlow    = "but only since the packets had passed"
)

// TestThePageShowsWhatTheDemoTells compares docs/demo.md with a demo.
func TestThePageShowsWhatTheDemoTells(t *testing.T) {
	cmd, folder := demoProcess(t)
	told, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	gone(t, folder)
	for words, why := range map[string]string{
		withoutTCX: "docs/demo.md shows the demo of a kernel with TCX",
		tooSlow:    "this machine is too busy: the packets had passed before the new version was loaded",
	} {
		if bytes.Contains(told, []byte(words)) {
			t.Skip("SKIPPED: " + why)
		}
	}
	page, err := os.ReadFile("../../docs/demo.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, found := strings.Cut(string(page), "```\n1. ")
	shown, _, closed := strings.Cut(shown, "```\n")
	if !found || !closed {
		t.Fatal("docs/demo.md shows no demo")
	}
	flat := func(text string) []string {
		lines := strings.Split(strings.TrimSpace(passing.ReplaceAllString(text, "~")), "\n")
		for i, line := range lines {
			lines[i] = strings.TrimRight(line, " ")
		}
		return lines
	}
	if diff := cmp.Diff(flat("1. "+shown), flat(string(told))); diff != "" {
		t.Errorf("docs/demo.md (-) and the demo (+):\n%s", diff)
	}
}
