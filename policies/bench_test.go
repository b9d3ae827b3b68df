package policies_test

import (
	"testing"

	"github.com/skep-dev/skep/policies"
)

// BenchmarkDecide is a warm decision: compiled, on an input that is allowed.
func BenchmarkDecide(b *testing.B) {
	restricted := profile("restricted")
	for name, value := range map[string]string{
		"images": `["registry.example.com/bpf/*"]`, "signers": `["release"]`, "hooks": `["xdp"]`, "interfaces": `["eth*"]`,
		"priorities": `[{"namespaces": ["team-*"], "min": 0, "max": 99}]`,
	} {
		parameter(name, value)(&restricted)
	}
	for name, list := range map[string][]policies.Policy{
		"baseline":                {profile("baseline")},
		"baseline and restricted": {profile("baseline"), restricted},
	} {
		b.Run(name, func(b *testing.B) {
			set := compile(b, list...)
			for b.Loop() {
				if d := decide(b, set, input()); !d.Allowed() {
					b.Fatalf("denied: %+v", d.Denied)
				}
			}
		})
	}
}

// BenchmarkCompile is what one more policy costs when policies change.
func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		compile(b, profile("baseline"))
	}
}
