package gate_test

import (
	"testing"

	"github.com/skep-dev/skep/gate"
)

// BenchmarkEvaluate evaluates one signed application with everything remembered, and
// beside it the first time, when registry, signatures, bytecode and policies
// are all new. The ratio is what remembering is worth.
func BenchmarkEvaluate(b *testing.B) {
	w := newWorld(b)
	count := app(w.signed("xdp_count"), "count_packets", onEth0())
	j := w.evaluator()
	first, err := j.Evaluate(b.Context(), gate.Request{Application: count})
	if err != nil || !first.Allowed() {
		b.Fatalf("allowed %v, %v", first.Allowed(), err)
	}
	req := gate.Request{Application: count, Digest: first.Image().Digest}
	b.Run("cached", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := j.Evaluate(b.Context(), req); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cold", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			w.memory = memory{}
			cold := w.evaluator()
			b.StartTimer()
			if _, err := cold.Evaluate(b.Context(), gate.Request{Application: count}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
