package policies_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/fixture/rules"
	"github.com/skep-dev/skep/test/harness/command"
)

// sets are what the benchmarks evaluate.
func sets() map[string][]policies.Policy {
	var apart []policies.Policy
	for i, rule := range rules.Deny() {
		apart = append(apart, policy(fmt.Sprintf("rule-%d", i), rule))
	}
	return map[string][]policies.Policy{
		"baseline":                           {},
		"baseline and restricted":            {listing(profile("restricted"))},
		"baseline and 20 rules in a policy":  {policy("rules", strings.Join(rules.Deny(), "\n"))},
		"baseline and 20 policies of a rule": apart,
	}
}

// each measures the processor time of doing something once more, the caller's and the
// workers'.
func each(b *testing.B, do func()) {
	do()
	before := command.CPUOfSelf(b)
	for b.Loop() {
		do()
	}
	b.ReportMetric(float64((command.CPUOfSelf(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

// BenchmarkDecide is a warm decision: compiled, on an input that is allowed.
func BenchmarkDecide(b *testing.B) {
	for name, list := range sets() {
		b.Run(name, func(b *testing.B) {
			set := compile(b, list...)
			if d := decide(b, set, input()); !d.Allowed() {
				b.Fatalf("denied: %+v", d.Denied)
			}
			each(b, func() { decide(b, set, input()) })
		})
	}
}

// BenchmarkForegone is a warm evaluation of the definition alone, which says nothing
// against it.
func BenchmarkForegone(b *testing.B) {
	for name, list := range sets() {
		b.Run(name, func(b *testing.B) {
			set := compile(b, list...)
			if d := foregone(b, set, input(defined), tagged); !d.Allowed() {
				b.Fatalf("denied: %+v", d.Denied)
			}
			each(b, func() { foregone(b, set, input(defined), tagged) })
		})
	}
}

// BenchmarkCompile is what one more policy costs when policies change.
func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		compile(b, policy("a", quiet))
	}
}
