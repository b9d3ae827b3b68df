package metrics_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/gate/metrics"
	"github.com/skep-dev/skep/test/harness/series"
)

func TestEachIsCountedUnderItsOwnName(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	m.Signatures(gate.FromRegistry)
	m.Looked(gate.RecallFacts, true)
	m.Looked(gate.RecallFacts, true)
	m.Looked(gate.RecallDecisions, false)
	for _, status := range []int{200, 200, 401, 0, 9999} {
		m.Answered(status)
	}
	want := map[string]float64{
		`skep_signature_lookups_total{source="memory"}`:                        0,
		`skep_signature_lookups_total{source="store"}`:                         0,
		`skep_signature_lookups_total{source="registry"}`:                      1,
		`skep_signature_lookups_total{source="stale"}`:                         0,
		`skep_signature_lookups_total{source="failed"}`:                        0,
		`skep_evaluation_cache_lookups_total{cache="evidence",result="hit"}`:   0,
		`skep_evaluation_cache_lookups_total{cache="evidence",result="miss"}`:  0,
		`skep_evaluation_cache_lookups_total{cache="facts",result="hit"}`:      2,
		`skep_evaluation_cache_lookups_total{cache="facts",result="miss"}`:     0,
		`skep_evaluation_cache_lookups_total{cache="decisions",result="hit"}`:  0,
		`skep_evaluation_cache_lookups_total{cache="decisions",result="miss"}`: 1,
		`skep_registry_requests_total{code="200"}`:                             2,
		`skep_registry_requests_total{code="401"}`:                             1,
		`skep_registry_requests_total{code="none"}`:                            2,
	}
	if diff := cmp.Diff(want, series.Of(t, registry)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}
