package nodemode

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/series"
)

// TestMetricsTellWhatDoesNotRun: by the reason, and programs that the host is without.
func TestMetricsTellWhatDoesNotRun(t *testing.T) {
	ready := func(status metav1.ConditionStatus, reason string, programs ...agent.ProgramStatus) Application {
		return Application{Programs: programs, Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, Reason: reason}},
			Agent: &agent.ApplicationStatus{Alternatives: []agent.AlternativeStatus{{Sets: []agent.SetStatus{
				{Programs: []string{"best"}, Error: "no such function"}, {Programs: []string{"good"}}, {Programs: []string{"spare"}, Error: "another set runs"},
			}}}}}
	}
	skipped := func(name string) agent.ProgramStatus {
		return agent.ProgramStatus{Name: name, Links: []agent.LinkStatus{{State: agent.Skipped, Error: "why"}}}
	}
	good := agent.ProgramStatus{Name: "good", Links: []agent.LinkStatus{{State: agent.Attached}}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(shortfall{func() Status {
		return Status{Applications: []Application{
			ready(metav1.ConditionTrue, ReasonSucceeded, skipped("best"), good, skipped("spare"), skipped("optional")),
			ready(metav1.ConditionFalse, "Failed"), ready(metav1.ConditionFalse, "Failed"), ready(metav1.ConditionUnknown, ""),
		}}
	}})
	got := series.Of(t, registry)
	for name, want := range map[string]float64{
		`skep_applications_not_ready{reason="Failed"}`: 2, `skep_applications_not_ready{reason="Unknown"}`: 1, "skep_programs_skipped": 2,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

// broken is a series that cannot be shown.
type broken struct{}

func (broken) Describe(chan<- *prometheus.Desc) {}

func (broken) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.NewInvalidMetric(prometheus.NewDesc("skep_map_broken", "Broken.", nil, nil), errors.New("it is broken"))
}

func TestASeriesThatCannotBeShownHidesNoOther(t *testing.T) {
	h := &Host{metrics: newMetrics(), opts: Options{Log: slog.New(slog.DiscardHandler)}}
	h.metrics.registry.MustRegister(broken{})
	server := httptest.NewUnstartedServer(nil)
	go func() { _ = h.serveMetrics(t.Context(), server.Listener) }()
	resp, err := http.Get("http://" + server.Listener.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "skep_unload_protected_applications 0\n") {
		t.Errorf("%s, %v: %s", resp.Status, err, body)
	}
}
