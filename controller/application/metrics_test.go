package application

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/harness/series"
)

// by are reasons of these rules.
func by(rules ...string) (reasons []policies.Reason) {
	for _, rule := range rules {
		reasons = append(reasons, policies.Reason{Rule: rule})
	}
	return reasons
}

func TestNothingIsToldOfWhatIsGone(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	one, two := v1alpha1.Identity{Kind: "K", Name: "one"}, v1alpha1.Identity{Kind: "K", Name: "two"}
	is := func(what string, want map[string]float64) {
		t.Helper()
		if diff := cmp.Diff(want, series.Of(t, registry)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	m.denials.replace(one, by("a/deny", "b/deny"))
	m.denials.replace(two, by("b/deny"))
	is("two are denied", map[string]float64{`skep_denials{rule="a/deny"}`: 1, `skep_denials{rule="b/deny"}`: 2})
	m.denials.replace(one, by("b/deny"))
	is("one rule denies no more", map[string]float64{`skep_denials{rule="b/deny"}`: 2})
	m.audited.replace(one, by("a/deny"))
	is("another would", map[string]float64{`skep_denials{rule="b/deny"}`: 2, `skep_audited_denials{rule="a/deny"}`: 1})
	m.audited.replace(two, by("a/deny", "a/deny"))
	is("one rule has two reasons", map[string]float64{`skep_denials{rule="b/deny"}`: 2, `skep_audited_denials{rule="a/deny"}`: 2})
	m.reset()
	is("another replica leads", map[string]float64{})
	m.denials.replace(one, by("a/deny"))
	m.audited.replace(two, by("a/deny"))
	m.forget(one)
	m.forget(two)
	is("both are gone", map[string]float64{})

	app := &v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: "app"}}
	app.Status.Nodes = &v1alpha1.NodesStatus{Loaded: 2, Failed: 1}
	unknown := lifecycle.Observation{Err: errors.New("the registry is away")}
	m.observe(app, unknown)
	const of = `skep_application_nodes{kind="ClusterBpfApplication",name="app",namespace="",state="`
	is("it runs", map[string]float64{`skep_verdicts_total{verdict="unknown"}`: 1,
		of + `loaded"}`: 2, of + `failed"}`: 1, of + `pending"}`: 0, of + `retained"}`: 0, of + `unsupported"}`: 0, of + `unreachable"}`: 0})
	app.Status.Nodes = nil
	m.observe(app, unknown)
	is("it was unloaded", map[string]float64{`skep_verdicts_total{verdict="unknown"}`: 2})
}

// TestRulesAreCountedApartUpToABound has an author name many rules, as a policy may.
func TestRulesAreCountedApartUpToABound(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	one, many := v1alpha1.Identity{Kind: "K", Name: "one"}, v1alpha1.Identity{Kind: "K", Name: "many"}
	m.denials.replace(one, by("a/deny"))
	var rules []string
	for i := range 2 * MaxRules {
		rules = append(rules, fmt.Sprintf("b/%d", i))
	}
	m.denials.replace(many, by(rules...))
	got := series.Of(t, registry)
	if len(got) != MaxRules+1 || got[`skep_denials{rule="other"}`] != 1 || got[`skep_denials{rule="a/deny"}`] != 1 {
		t.Errorf("%d rules are counted apart, and %v applications by others, want %d and 1", len(got)-1, got[`skep_denials{rule="other"}`], MaxRules)
	}
	m.forget(many)
	if got := series.Of(t, registry); len(got) != 1 {
		t.Errorf("%d are left, want 1", len(got))
	}
}
