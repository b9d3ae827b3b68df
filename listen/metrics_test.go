package listen_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/skep-dev/skep/listen"
)

// contradiction are a counter and a gauge of one name, and something that is no series.
type contradiction struct{}

func (contradiction) Describe(chan<- *prometheus.Desc) {}

func (contradiction) Collect(to chan<- prometheus.Metric) {
	desc := prometheus.NewDesc("app_packets", "Of two tenants.", nil, nil)
	to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, 1)
	to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, 2)
	to <- prometheus.NewInvalidMetric(desc, errors.New(strings.Repeat("long", 1000)))
}

// TestOneBadSeriesHidesNoOther, and fills no log.
func TestOneBadSeriesHidesNoOther(t *testing.T) {
	registry, log := prometheus.NewRegistry(), &strings.Builder{}
	registry.MustRegister(contradiction{}, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "good"}, func() float64 { return 7 }))
	var o promhttp.HandlerOpts
	listen.Continue(&o, registry, slog.New(slog.NewJSONHandler(log, nil)))
	h := promhttp.HandlerFor(registry, o)
	for i := range 5 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
		for _, want := range []string{"good 7\n", "app_packets 1\n", fmt.Sprintf("promhttp_metric_handler_errors_total{cause=\"gathering\"} %d\n", i)} {
			if !strings.Contains(w.Body.String(), want) || w.Code != http.StatusOK {
				t.Errorf("scrape %d has no %q: %d\n%s", i, want, w.Code, w.Body)
			}
		}
	}
	said := log.String()
	if strings.Count(said, "\n") != 1 || !strings.Contains(said, "app_packets") || len(said) > 2000 {
		t.Errorf("%d bytes are logged: %s", len(said), said)
	}
}
