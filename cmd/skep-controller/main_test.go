package main

import (
	"math"
	"runtime/debug"
	"strings"
	"testing"
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
	was := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(was) })
	for name, c := range map[string]struct {
		environment string
		args        []string
		want        int64
	}{
		"four tenths are left to what evaluates policies": {"", []string{"--memory-limit=1000000000"}, 600_000_000},
		"no limit is none":              {"", nil, math.MaxInt64},
		"Go's own variable goes before": {"500MB", []string{"--memory-limit=1000000000"}, math.MaxInt64},
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
