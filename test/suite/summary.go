package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// most is how many of the longest packages and tests a summary names.
const most = 10

// summary is the end of a run. The last line is one that other tools read.
func (r *report) summary(leftOut []string) {
	packages, tests := map[string]float64{}, map[string]float64{}
	reasons, counts := map[string]int{}, map[string]int{}
	cached := 0
	for of, result := range r.results {
		short := strings.TrimPrefix(of.pkg, module)
		if of.test == "" {
			packages[short] = result.seconds
			if result.cached {
				cached++
			}
			// One that could not be built has no test that failed.
			if result.action == "fail" && !r.hasFailedTest(of.pkg) {
				counts["fail"]++
			}
			continue
		}
		counts[result.action]++
		if result.action == "skip" {
			reasons[result.reason]++
		}
		if !strings.Contains(of.test, "/") {
			tests[short+" "+of.test] = result.seconds
		}
	}
	r.slowest("packages", packages)
	r.slowest("tests", tests)
	fmt.Fprintf(r.out, "\n%d tests were skipped:\n", counts["skip"])
	for _, why := range slices.SortedFunc(maps.Keys(reasons), func(a, b string) int { return cmp.Or(reasons[b]-reasons[a], cmp.Compare(a, b)) }) {
		fmt.Fprintf(r.out, "%6d  %s\n", reasons[why], why)
	}
	if packages := lacking(reasons); len(packages) > 0 {
		fmt.Fprintln(r.out, "        What they lack: apt-get install", strings.Join(packages, " "))
	}
	fmt.Fprintf(r.out, "\nOf %d packages, %d have their results from go test's cache.\n", len(packages), cached)
	for _, line := range leftOut {
		fmt.Fprintln(r.out, line)
	}
	r.unsteady()
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", counts["pass"], counts["fail"], counts["skip"])
}

// lacking are the packages of Debian that reasons name, once each.
func lacking(reasons map[string]int) []string {
	var all []string
	for why := range reasons {
		if _, names, found := strings.Cut(why, "apt-get install "); found {
			all = append(all, strings.Fields(names)...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// hasFailedTest reports whether a test of the package failed.
func (r *report) hasFailedTest(pkg string) bool {
	for of, result := range r.results {
		if of.pkg == pkg && of.test != "" && result.action == "fail" {
			return true
		}
	}
	return false
}

// unsteady names the packages that passed at their second try, and those that failed.
func (r *report) unsteady() {
	var flaky, failed []string
	for of, result := range r.results {
		switch {
		case of.test != "":
		case result.action == "fail":
			failed = append(failed, of.pkg)
		case slices.Contains(r.flaky, of.pkg):
			flaky = append(flaky, of.pkg)
		}
	}
	for what, names := range map[string][]string{"FLAKY:": flaky, "FAILED:": failed} {
		if len(names) > 0 {
			slices.Sort(names)
			fmt.Fprintln(r.out, what, strings.Join(names, " "))
		}
	}
}

func (r *report) slowest(what string, seconds map[string]float64) {
	names := slices.SortedFunc(maps.Keys(seconds), func(a, b string) int {
		return cmp.Or(cmp.Compare(seconds[b], seconds[a]), cmp.Compare(a, b))
	})
	fmt.Fprintf(r.out, "\nThe longest %s:\n", what)
	for _, name := range names[:min(most, len(names))] {
		fmt.Fprintf(r.out, "%7.1fs  %s\n", seconds[name], name)
	}
}
