package policies_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/command"
	"github.com/skep-dev/skep/test/rules"
)

// BenchmarkDecide is a warm decision: compiled, on an input that is allowed. The
// processor time is that of the caller and of the workers.
func BenchmarkDecide(b *testing.B) {
	var apart []policies.Policy
	for i, rule := range rules.Deny() {
		apart = append(apart, policy(fmt.Sprintf("rule-%d", i), rule))
	}
	for name, list := range map[string][]policies.Policy{
		"baseline":                           {},
		"baseline and restricted":            {listing(profile("restricted"))},
		"baseline and 20 rules in a policy":  {policy("rules", strings.Join(rules.Deny(), "\n"))},
		"baseline and 20 policies of a rule": apart,
	} {
		b.Run(name, func(b *testing.B) {
			set := compile(b, list...)
			if d := decide(b, set, input()); !d.Allowed() {
				b.Fatalf("denied: %+v", d.Denied)
			}
			before := command.CPUOfSelf(b)
			for b.Loop() {
				decide(b, set, input())
			}
			b.ReportMetric(float64((command.CPUOfSelf(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// BenchmarkCompile is what one more policy costs when policies change.
func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		compile(b, policy("a", quiet))
	}
}
