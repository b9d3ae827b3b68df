package admission

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/skep-dev/skep/controller/application"
)

func TestDenialsAreCountedByRule(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	m.observe("BpfApplication", answer{outcome: denied, rules: []string{"baseline/signed", "a/deny", "a/deny"}})
	m.observe("BpfApplication", answer{outcome: denied, rules: []string{"a/deny"}})
	m.observe("BpfApplication", answer{outcome: allowed})
	want := `# HELP skep_admission_denials_total Requests to admit an application that a rule denied, by the rule.
# TYPE skep_admission_denials_total counter
skep_admission_denials_total{rule="a/deny"} 2
skep_admission_denials_total{rule="baseline/signed"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "skep_admission_denials_total"); err != nil {
		t.Error(err)
	}

	// A policy makes up rules by what it is asked about.
	for i := range 2 * application.MaxRules {
		m.observe("BpfApplication", answer{outcome: denied, rules: []string{fmt.Sprint("made-up/", i)}})
	}
	m.observe("BpfApplication", answer{outcome: denied, rules: []string{"a/deny"}})
	if n := testutil.CollectAndCount(m.denials); n != application.MaxRules+1 {
		t.Errorf("%d rules are counted apart, want %d and the rest", n, application.MaxRules)
	}
	if got, other := testutil.ToFloat64(m.denials.WithLabelValues("a/deny")), testutil.ToFloat64(m.denials.WithLabelValues(application.OtherRules)); got != 3 ||
		other != application.MaxRules+2 {
		t.Errorf("a/deny denied %v times, and others %v, want 3 and %d", got, other, application.MaxRules+2)
	}
}
