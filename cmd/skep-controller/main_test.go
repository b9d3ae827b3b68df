package main

import (
	"fmt"
	"math"
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
