// Command suite runs the tests of the module: it is what make test and .ci/run call.
//
// It owns which packages run how (once more or out of go test's cache, with the race detector or
// without, which suites beside them), and what a run says at its end: what was left out and what
// brings it, how many tests were skipped and why, how many packages came from the cache, and what
// took longest. It knows nothing of the tests.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/leaks"
)

// options are the variables of make test.
type options struct {
	// race is which packages run under the race detector: none, ours (the list) or all.
	race string
	// kernels are those of test/kernel: series of Debian's kernels, and own; empty for none.
	kernels string
	// e2e and gitops are auto, which runs them where the machine can, or no.
	e2e, gitops string
	// atOnce is how many packages run at the same time.
	atOnce int
	// again is until when, from the start, packages that fail run once more; 0 for never.
	again time.Duration
	// flags go to go test as they are.
	flags []string
	// packages are patterns; none is all packages.
	packages []string
}

func main() {
	leaks.MaybeProbe()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	o, err := parse(os.Args[1:])
	ok := false
	if err == nil {
		ok, err = run(ctx, o)
	}
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}

// parse reads the command line.
func parse(args []string) (options, error) {
	var o options
	var flags string
	set := flag.NewFlagSet("suite", flag.ContinueOnError)
	set.StringVar(&o.race, "race", "none", "packages that run under the race detector: none, ours or all")
	set.StringVar(&o.kernels, "kernels", "", "kernels that the tests of hooks run on too, such as own,6.1,6.12")
	set.StringVar(&o.e2e, "e2e", "auto", "whole clusters: auto or no")
	set.StringVar(&o.gitops, "gitops", "auto", "tests with Flux's controllers: auto or no")
	set.IntVar(&o.atOnce, "p", 3, "packages at once")
	set.DurationVar(&o.again, "again", 0, "until when packages that fail run once more, from the start")
	set.StringVar(&flags, "flags", "", "flags of go test")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	for name, c := range map[string]struct {
		value   string
		allowed []string
	}{
		"race": {o.race, []string{"none", "ours", "all"}}, "e2e": {o.e2e, []string{"auto", "no"}}, "gitops": {o.gitops, []string{"auto", "no"}},
	} {
		if !slices.Contains(c.allowed, c.value) {
			return o, fmt.Errorf("-%s=%s: it is one of %s", name, c.value, strings.Join(c.allowed, ", "))
		}
	}
	o.flags, o.packages = strings.Fields(flags), set.Args()
	return o, nil
}

// run runs all steps, and reports whether every test passed.
func run(ctx context.Context, o options) (bool, error) {
	start := time.Now()
	packages, err := list(ctx, o.packages)
	if err != nil {
		return false, err
	}
	m, err := look(ctx, o)
	if err != nil {
		return false, err
	}
	p := newPlan(o, m, packages)
	for _, line := range p.leftOut {
		fmt.Println(line)
	}
	r := newReport(os.Stdout, o.flags)
	for _, s := range p.steps {
		if err := r.goTest(ctx, s, s.packages); err != nil {
			return false, err
		}
		failed := r.failedOf(s)
		if len(failed) == 0 || len(failed) > tooMany || time.Since(start) > o.again || leaks.Hangs() {
			continue
		}
		fmt.Println("*** ONCE MORE:", strings.Join(failed, " "), "***")
		r.forget(failed)
		if err := r.goTest(ctx, s.alone(), failed); err != nil {
			return false, err
		}
	}
	r.summary(p.leftOut)
	return r.passed(), nil
}

// tooMany is how many packages fail for one cause, and not by chance.
const tooMany = 5
