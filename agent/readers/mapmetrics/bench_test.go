package mapmetrics_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/readers/mapmetrics"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// BenchmarkScrape reads and gathers maps of 10,000 entries. A scrape of a scan that is there reads no map.
func BenchmarkScrape(b *testing.B) {
	c := collection(b, map[string]uint32{"sizes": 10_000, "drops": 10_000})
	fill(b, c.Maps["sizes"], 10_000)
	for name, scan := range map[string]bool{"10,000 entries, read": true, "10,000 entries, read before": false} {
		b.Run(name, func(b *testing.B) {
			collector, registry, _ := collector(b)
			one := source("shop", c.Maps["sizes"], "sizes", packets())
			for b.Loop() {
				if scan {
					// Metrics that differ are read anew.
					again := packets()
					again.Help = time.Now().String()
					one.Metrics = &again
				}
				collector.Publish([]mapmetrics.Source{one})
				if _, err := registry.Gather(); err != nil {
					b.Fatal(err)
				}
			}
			if n := len(of(b, registry)); n != 10_000 {
				b.Fatalf("%d series", n)
			}
		})
	}
}

// BenchmarkReconcileBesideScans is a full reconcile of an agent while no map is read, and while one of 1,048,576 entries is: both in turn, and
// the second median as a multiple of the first.
func BenchmarkReconcileBesideScans(b *testing.B) {
	need.Kernel(b)
	w := world.New(b)
	world.Quiet(b)
	world.Veth(b, "mm0", "mm1")
	o := w.Options()
	o.Log = slog.New(slog.DiscardHandler)
	a, _ := w.Run(o)
	p := w.Intent("meter", "xdp_series", v1alpha1.Program{Name: "xdp_series", Attach: world.On("xdp", "mm0")})
	if err := w.Accept(a, p); err != nil {
		b.Fatal(err)
	}
	large := collection(b, map[string]uint32{"sizes": 1 << 20})
	fill(b, large.Maps["sizes"], 1<<20)
	scans, registry, _ := collector(b)
	var alone, beside []time.Duration
	reconcile := func(took *[]time.Duration) {
		for range 50 {
			began := time.Now()
			a.Reconcile(context.Background())
			*took = append(*took, time.Since(began))
		}
	}
	for b.Loop() {
		scans.Publish(nil)
		reconcile(&alone)
		scans.Publish([]mapmetrics.Source{source("greedy", large.Maps["sizes"], "sizes", packets())})
		if _, err := registry.Gather(); err != nil {
			b.Fatal(err)
		}
		// The scan takes seconds.
		reconcile(&beside)
	}
	slices.Sort(alone)
	slices.Sort(beside)
	median := beside[len(beside)/2]
	b.ReportMetric(float64(median)/float64(alone[len(alone)/2]), "times")
	b.ReportMetric(float64(median.Microseconds()), "µs/reconcile")
}
