package main

import (
	"fmt"
	"math"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/skep-dev/skep/policies"
)

func TestTheControllerTellsItsVersion(t *testing.T) {
	cmd, out := newCommand(), &strings.Builder{}
	cmd.SetOut(out)
	cmd.SetArgs([]string{"--version"})
	if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.HasPrefix(out.String(), "skep-controller version ") {
		t.Errorf("%v, %q", err, out)
	}
}

func TestGoCollectsBeforeTheKernelEndsTheProcess(t *testing.T) {
	workers := policies.EngineOptions{}.WorkerBytes()
	was := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(was) })
	for name, c := range map[string]struct {
		environment string
		args        []string
		want        int64
	}{
		"what evaluates policies has its memory": {"", []string{fmt.Sprintf("--memory-limit=%d", workers+1_000_000_000)}, 900_000_000},
		"a small limit leaves Go its share":      {"", []string{"--memory-limit=1200000000"}, 360_000_000},
		"no limit is none":                       {"", nil, math.MaxInt64},
		"Go's own variable goes before":          {"500MB", []string{"--memory-limit=1000000000"}, math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			debug.SetMemoryLimit(math.MaxInt64)
			t.Setenv("GOMEMLIMIT", c.environment)
			cmd := newCommand()
			cmd.SetArgs(append(c.args, "--namespace="))
			if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--namespace") {
				t.Fatal(err)
			}
			if got := debug.SetMemoryLimit(-1); got != c.want {
				t.Errorf("Go's limit is %d, want %d", got, c.want)
			}
		})
	}
}

func TestALeaseThatCannotBeKeptIsRejectedAtTheStart(t *testing.T) {
	const lease, renew, retry = "--leader-elect-lease-duration=", "--leader-elect-renew-deadline=", "--leader-elect-retry-period="
	for name, c := range map[string]struct {
		args []string
		// want is a part of the error; that of the next step where the timing is valid.
		want string
	}{
		"the defaults are valid":                      {nil, "reach the API server"},
		"each may be set":                             {[]string{lease + "5s", renew + "4s", retry + "500ms"}, "reach the API server"},
		"the lease ends with the renew deadline":      {[]string{lease + "10s"}, "lengthen the lease duration or shorten the renew deadline"},
		"the lease holds whole seconds":               {[]string{lease + "10999ms"}, "in whole seconds it must be longer than the renew deadline, 10s"},
		"one retry with its jitter takes as long":     {[]string{renew + "2400ms"}, "lengthen the renew deadline or shorten the retry period"},
		"a retry with its jitter is somewhat shorter": {[]string{renew + "2401ms"}, "reach the API server"},
		"no lease duration":                           {[]string{lease + "0s"}, "check lease duration 0s: it must be longer than zero"},
		"a negative renew deadline":                   {[]string{renew + "-1s"}, "check renew deadline -1s: it must be longer than zero"},
		"no retry period":                             {[]string{retry + "0s"}, "check retry period 0s: it must be longer than zero"},
		"without an election none of them counts":     {[]string{"--leader-elect=false", lease + "1s", retry + "0s"}, "reach the API server"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := newCommand()
			cmd.SetArgs(append(c.args, "--namespace=skep", "--kubeconfig="+filepath.Join(t.TempDir(), "none")))
			if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
