package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// event is a line of go test -json (go doc test2json).
type event struct {
	Action, Package, ImportPath, Test, Output, FailedBuild string
	Elapsed                                                float64
}

// name is what a result is of: a package, or one of its tests.
type name struct{ pkg, test string }

// result is how it ended.
type result struct {
	action  string
	seconds float64
	cached  bool
	// reason is why a test was skipped.
	reason string
}

// report collects the results of calls of go test, and prints what a person wants to see of
// each: the line of a package, and all of a test that fails.
type report struct {
	out io.Writer
	// flags are those of the person who runs the tests; verbose is whether -v is among them.
	flags   []string
	verbose bool
	results map[name]result
	// printed is what was not shown yet, by its test; that of builds by import path.
	printed map[name][]string
	builds  map[string][]string
	flaky   []string
}

func newReport(out io.Writer, flags []string) *report {
	verbose := slices.ContainsFunc(flags, regexp.MustCompile(`^--?(test\.)?v(=true)?$`).MatchString)
	return &report{out: out, flags: flags, verbose: verbose, results: map[name]result{}, printed: map[name][]string{}, builds: map[string][]string{}}
}

// wait is how long go test and what it started may take to end when the run is interrupted.
const wait = 30 * time.Second

// goTest runs packages as a step has it. It fails where go test cannot be run; what tests do is
// in the report. A package without a result has failed.
func (r *report) goTest(ctx context.Context, s step, packages []string) error {
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-json"}, s.args, packages, r.flags)...)
	cmd.Env, cmd.Stderr = append(withoutVariables(os.Environ()), s.env...), os.Stderr
	// What a test binary starts is interrupted with it.
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, wait
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("run go test: %w", err)
	}
	read := r.read(out)
	err = cmd.Wait()
	if failed := new(exec.ExitError); ctx.Err() == nil && errors.As(err, &failed) && failed.Exited() && r.close(packages) {
		err = nil
	}
	if err := errors.Join(read, err, ctx.Err()); err != nil {
		return fmt.Errorf("run go test: %w", err)
	}
	return nil
}

// close takes packages of a call that failed for failed where they have no result, and reports
// whether the call failed for its tests: for a wrong flag, no package has a result.
func (r *report) close(packages []string) bool {
	ran, failed := false, false
	var open []string
	for _, p := range packages {
		result, ok := r.results[name{pkg: p}]
		ran, failed = ran || ok, failed || result.action == "fail"
		if !ok {
			open = append(open, p)
		}
	}
	for _, p := range open {
		r.results[name{pkg: p}] = result{action: "fail"}
		if ran {
			fmt.Fprintln(r.out, "FAIL\t"+p+" [no result: go test ended before]")
		}
	}
	return ran && (failed || len(open) > 0)
}

// withoutVariables is an environment without what the variables of make test are handed on by.
func withoutVariables(env []string) []string {
	return slices.DeleteFunc(env, func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains([]string{"SKEP_E2E", "SKEP_GITOPS", "SKEP_VM_KERNELS"}, name)
	})
}

// read takes every event of a call of go test.
func (r *report) read(events io.Reader) error {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil {
				r.take(e)
			} else {
				_, _ = r.out.Write(line)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
	}
}

// skipped is a line by which a test may say why it is skipped. What it logs at its end follows it.
var skipped = regexp.MustCompile(`^\s+\S+\.go:\d+: (SKIPPED: ?)?(.*)`)

func (r *report) take(e event) {
	of := name{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
	case "output":
		r.output(of, e.Output)
	case "pass", "fail", "skip":
		was := r.results[of]
		was.action, was.seconds = e.Action, e.Elapsed
		if e.Action == "skip" && e.Test != "" {
			was.reason = reason(r.printed[of])
		}
		r.results[of] = was
		r.end(of, e)
	}
}

// output keeps a line until it is known whether anybody wants to see it. Who runs tests with -v
// wants to see all.
func (r *report) output(of name, line string) {
	if of.test == "" && strings.HasPrefix(line, "ok ") {
		r.results[of] = result{cached: strings.Contains(line, "(cached)")}
	}
	shown := r.verbose || of.test == "" && strings.HasPrefix(line, "ok ") || strings.HasPrefix(line, "***")
	if shown {
		_, _ = io.WriteString(r.out, line)
	}
	if !shown || of.test != "" {
		r.printed[of] = append(r.printed[of], line)
	}
}

// end shows what a failed test or package printed, and lets go of the rest.
func (r *report) end(of name, e event) {
	if e.Action == "fail" {
		lines := r.builds[e.FailedBuild]
		if !r.verbose {
			lines = slices.Concat(lines, r.printed[of])
		}
		_, _ = io.WriteString(r.out, strings.Join(lines, ""))
	}
	delete(r.printed, of)
	if of.test != "" {
		return
	}
	// What a package that ended early, as by a panic, left open.
	for _, open := range slices.SortedFunc(maps.Keys(r.printed), func(a, b name) int { return cmp.Compare(a.test, b.test) }) {
		if open.pkg != of.pkg {
			continue
		}
		if e.Action == "fail" && !r.verbose {
			_, _ = io.WriteString(r.out, strings.Join(r.printed[open], ""))
		}
		delete(r.printed, open)
	}
}

// reason is what the first line says that begins with SKIPPED, or else the last that a test logged.
func reason(lines []string) string {
	last := "it gives no reason"
	for _, line := range lines {
		found := skipped.FindStringSubmatch(line)
		switch {
		case found == nil:
		case found[1] != "":
			return found[2]
		default:
			last = found[2]
		}
	}
	return last
}

// failedOf returns the packages of a step that failed.
func (r *report) failedOf(s step) []string {
	return slices.DeleteFunc(slices.Clone(s.packages), func(p string) bool { return r.results[name{pkg: p}].action != "fail" })
}

// forget takes the results of packages back that run once more: what passes then is flaky.
func (r *report) forget(packages []string) {
	r.flaky = append(r.flaky, packages...)
	maps.DeleteFunc(r.results, func(of name, _ result) bool { return slices.Contains(packages, of.pkg) })
}

// passed reports whether every package passed that ran.
func (r *report) passed() bool {
	for of, result := range r.results {
		if result.action == "fail" && of.test == "" {
			return false
		}
	}
	return len(r.results) > 0
}
