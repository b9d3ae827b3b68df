package nodemode

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	agentmetrics "github.com/skep-dev/skep/agent/metrics"
	"github.com/skep-dev/skep/api/v1alpha1"
	gatemetrics "github.com/skep-dev/skep/gate/metrics"
	"github.com/skep-dev/skep/policies"
)

// metrics are what Prometheus sees of a host.
type metrics struct {
	registry     *prometheus.Registry
	syncs        prometheus.Histogram
	moves        *prometheus.CounterVec
	denials      *prometheus.GaugeVec
	audited      *prometheus.GaugeVec
	applications *prometheus.GaugeVec
	problems     prometheus.Gauge
	sourceUp     prometheus.Gauge
	protected    prometheus.Gauge
	// gate and agent are those of the packages underneath.
	gate  *gatemetrics.Metrics
	agent *agentmetrics.Metrics
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		syncs: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "skep_sync_duration_seconds", Help: "Time from fetching the source to handing intents to the agent.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)}),
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_intents_sealed_total", Help: "Intents handed to the agent, by what they do: seal or unload."}, []string{"action"}),
		denials: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "skep_denials", Help: "Definitions denied now, by rule."}, []string{"rule"}),
		audited: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "skep_audited_denials", Help: "Definitions that a policy in Audit mode would deny now, by rule."}, []string{"rule"}),
		applications: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "skep_applications", Help: "Definitions, by what the gate says: True, False or Unknown."}, []string{"allowed"}),
		problems: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "skep_definition_problems", Help: "Definitions and files that cannot be read."}),
		sourceUp: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "skep_source_up", Help: "1 where the source could be read last time."}),
		protected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "skep_unload_protected_applications", Help: "Applications a change of policies or of the source would unload, waiting to be confirmed."}),
	}
	m.registry.MustRegister(m.syncs, m.moves, m.denials, m.audited, m.applications, m.problems, m.sourceUp, m.protected,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.gate, m.agent = gatemetrics.New(m.registry), agentmetrics.New(m.registry)
	return m
}

// shortfall tells Prometheus what does not run here as it is defined. It asks the agent when it is
// read, so that it is as new as skep status.
type shortfall struct{ status func() Status }

var (
	notReady = prometheus.NewDesc("skep_applications_not_ready",
		"Applications that do not run as they are defined, by the reason of their condition Ready.", []string{"reason"}, nil)
	skippedPrograms = prometheus.NewDesc("skep_programs_skipped",
		"Programs of running applications that this host is without, since the definition leaves them to it.", []string{}, nil)
)

// Describe implements prometheus.Collector.
func (shortfall) Describe(to chan<- *prometheus.Desc) { to <- notReady; to <- skippedPrograms }

// Collect implements prometheus.Collector.
func (s shortfall) Collect(to chan<- prometheus.Metric) {
	reasons, skipped := map[string]int{}, 0
	for _, a := range s.status().Applications {
		if ready := a.Condition(v1alpha1.ConditionReady); ready.Status != metav1.ConditionTrue {
			reasons[or(ready.Reason, "Unknown")]++
		}
		skipped += len(a.Skipped())
	}
	for reason, n := range reasons {
		to <- prometheus.MustNewConstMetric(notReady, prometheus.GaugeValue, float64(n), reason)
	}
	to <- prometheus.MustNewConstMetric(skippedPrograms, prometheus.GaugeValue, float64(skipped))
}

// synced records one sync.
func (m *metrics) synced(took time.Duration, s Status) {
	m.syncs.Observe(took.Seconds())
	m.denials.Reset()
	m.audited.Reset()
	m.applications.Reset()
	for _, a := range s.Applications {
		m.applications.WithLabelValues(string(a.Condition(v1alpha1.ConditionAllowed).Status)).Inc()
		for _, rule := range policies.Rules(a.Reasons) {
			m.denials.WithLabelValues(rule).Inc()
		}
		for _, rule := range policies.Rules(a.Audited) {
			m.audited.WithLabelValues(rule).Inc()
		}
	}
	m.problems.Set(float64(len(s.Problems)))
	m.sourceUp.Set(0)
	if s.Source.Error == "" {
		m.sourceUp.Set(1)
	}
	m.protected.Set(0)
	for _, b := range []*UnloadProtection{s.UnloadProtection, s.Source.UnloadProtection} {
		if b != nil {
			m.protected.Add(float64(len(b.Applications)))
		}
	}
}
