package gate_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/gate/metrics"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/harness/series"
)

// counted is an Evaluator, and a function that tells what it counted since it was
// last asked.
func (w *world) counted(t *testing.T) (*gate.Evaluator, func() map[string]float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	j, err := gate.New(gate.Options{
		Images: w.client, Trust: w.trust(w.signers...), Policies: w.policy(), Memory: w.memory,
		Observer: metrics.New(registry), Now: func() time.Time { return w.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	var before map[string]float64
	return j, func() map[string]float64 {
		now, more := series.Of(t, registry), map[string]float64{}
		for _, name := range slices.Collect(maps.Keys(now)) {
			if n := now[name] - before[name]; n != 0 {
				more[name] = n
			}
		}
		before = now
		return more
	}
}

func TestWhereEvidenceComesFromIsCounted(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_count")
	count := app(ref, "count_packets", onEth0())
	j, since := w.counted(t)
	const source, cache = `skep_signature_lookups_total{source="`, `skep_evaluation_cache_lookups_total{cache="`
	is := func(what string, want map[string]float64) {
		t.Helper()
		if diff := cmp.Diff(want, since()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	req := gate.Request{Application: count, Digest: mustEvaluate(t, j, count).Image().Digest}
	first := since()
	if first[source+`registry"}`] != 1 || first[cache+`facts",result="miss"}`] != 1 || first[cache+`decisions",result="miss"}`] != 1 {
		t.Errorf("at first: %v", first)
	}
	hits := map[string]float64{cache + `evidence",result="hit"}`: 2, cache + `facts",result="hit"}`: 1, cache + `decisions",result="hit"}`: 1}
	with := func(from string) map[string]float64 {
		want := maps.Clone(hits)
		want[source+from+`"}`] = 1
		return want
	}
	again := func() error { _, err := j.Evaluate(t.Context(), req); return err }
	if err := again(); err != nil {
		t.Fatal(err)
	}
	is("again", with("memory"))

	w.down.Store(true)
	w.now = w.now.Add(time.Hour)
	if err := again(); err != nil {
		t.Fatal(err)
	}
	is("with the registry away", with("stale"))
	w.now = w.now.Add(24 * time.Hour)
	if err := again(); !errors.Is(err, image.ErrUnavailable) {
		t.Fatal(err)
	}
	is("with the registry away for long", map[string]float64{
		// The definition and the bytecode alone are evaluated.
		source + `failed"}`: 1, cache + `evidence",result="hit"}`: 1, cache + `facts",result="hit"}`: 2,
		cache + `decisions",result="miss"}`: 1,
	})
	w.now = w.now.Add(-25 * time.Hour)

	j, since = w.counted(t)
	if err := again(); err != nil {
		t.Fatal(err)
	}
	if stored := since(); stored[source+`store"}`] != 1 {
		t.Errorf("from another process's: %v", stored)
	}
}
