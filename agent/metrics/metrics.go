// Package metrics counts for Prometheus what an agent does to its kernel, in
// node mode and in a cluster. It names no application, so its series are as many
// with a hundred of them as with one.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/reconcile/quota"
)

// Metrics is a agent.Observer.
type Metrics struct {
	loads    *prometheus.HistogramVec
	attaches *prometheus.HistogramVec
	healed   *prometheus.CounterVec
	// programs, pages and leftOut are as in quota.Counts.
	programs, pages, leftOut prometheus.Gauge
}

// New registers the metrics. Those that count nothing yet are 0 and not
// missing, but for hooks that nothing was attached to.
func New(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		loads: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "skep_agent_load_duration_seconds", Help: "Time to load a revision of an application, or a chain of programs, into the kernel, by what: " +
				"revision or chain, and by result: ok or failed.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)}, []string{"what", "result"}),
		attaches: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "skep_agent_attach_duration_seconds", Help: "Time to attach a program or to swap it in place, by hook and by result: ok or failed.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8)}, []string{"hook", "result"}),
		healed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_agent_drift_healed_total", Help: "What somebody else changed in the kernel and was put back, by kind: unpinned, detached or replaced."},
			[]string{"kind"}),
		programs: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "skep_agent_shared_target_programs", Help: "Programs of all namespaces at the tracepoint, function or place in a file that has the most of them.",
		}),
		pages: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "skep_agent_shared_text_pages", Help: "Pages of text with probes of one namespace, in the file that has the most of them.",
		}),
		leftOut: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "skep_agent_shared_left_out", Help: "Attachments of namespaces that are left out, since a tracepoint, a function or a file has no room for them.",
		}),
	}
	for _, what := range agent.Loadables() {
		m.loads.WithLabelValues(string(what), ok)
		m.loads.WithLabelValues(string(what), failed)
	}
	for _, d := range agent.Drifts() {
		m.healed.WithLabelValues(string(d))
	}
	registry.MustRegister(m.loads, m.attaches, m.healed, m.programs, m.pages, m.leftOut)
	return m
}

// The values of the label result.
const ok, failed = "ok", "failed"

func result(err error) string {
	if err != nil {
		return failed
	}
	return ok
}

// Loaded implements agent.Observer.
func (m *Metrics) Loaded(what agent.Loadable, took time.Duration, err error) {
	m.loads.WithLabelValues(string(what), result(err)).Observe(took.Seconds())
}

// Attached implements agent.Observer.
func (m *Metrics) Attached(hook string, took time.Duration, err error) {
	m.attaches.WithLabelValues(hook, result(err)).Observe(took.Seconds())
}

// Shared implements agent.TargetObserver.
func (m *Metrics) Shared(c quota.Counts) {
	m.programs.Set(float64(c.Programs))
	m.pages.Set(float64(c.Pages))
	m.leftOut.Set(float64(c.LeftOut))
}

// Healed implements agent.Observer.
func (m *Metrics) Healed(what agent.Drift) { m.healed.WithLabelValues(string(what)).Inc() }
