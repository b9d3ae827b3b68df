package kube

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skep-dev/skep/agent"
	agentmetrics "github.com/skep-dev/skep/agent/metrics"
	"github.com/skep-dev/skep/agent/metrics/programs"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// metrics are what Prometheus sees of an agent.
type metrics struct {
	registry     *prometheus.Registry
	applications *prometheus.GaugeVec
	intents      *prometheus.CounterVec
	fetches      *prometheus.CounterVec
	fetchTime    prometheus.Histogram
	writes       *prometheus.CounterVec
	// kernel is the agent's underneath.
	kernel *agentmetrics.Metrics
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		applications: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "skep_agent_applications", Help: "Applications on this node, by state."}, []string{"state"}),
		intents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_agent_intents_total", Help: "Envelopes seen, by how they fared: accepted, seal, format, older, conflict, failed."}, []string{"result"}),
		fetches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_agent_fetches_total", Help: "Objects asked of the mirror, by result: ok, failed."}, []string{"result"}),
		fetchTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "skep_agent_fetch_duration_seconds", Help: "Time to fetch one object.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_agent_writes_total", Help: "Writes of the BpfNode, by verb and by what the API server said."}, []string{"verb", "result"}),
	}
	// increase() sees no first event of a series that begins with it.
	for _, fare := range []string{accepted, badSeal, badFormat, overtaken, conflicts, notAtHand} {
		m.intents.WithLabelValues(fare)
	}
	for _, result := range []string{"ok", "failed"} {
		m.fetches.WithLabelValues(result)
	}
	m.registry.MustRegister(m.applications, m.intents, m.fetches, m.fetchTime, m.writes,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.kernel = agentmetrics.New(m.registry)
	return m
}

// watch adds what is looked up when it is asked for.
func (m *metrics) watch(a *Agent) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "skep_agent_intents_listed", Help: "1 where the API server listed the intents since the agent started."},
		func() float64 {
			if listed, _ := a.intents.state(); listed {
				return 1
			}
			return 0
		}))
	m.registry.MustRegister(programs.New(programs.Options{Status: a.holder.Report, Clock: a.opts.Cost}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skep_agent_volumes", Help: "Volumes of pods that read maps."},
			func() float64 { current, behind := a.volumes.Count(); return float64(current + behind) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skep_agent_volumes_behind", Help: "Volumes of pods that do not have what they should."},
			func() float64 { _, behind := a.volumes.Count(); return float64(behind) }))
}

// report counts applications by state.
func (m *metrics) report(all []agent.ApplicationStatus) {
	// Those that there are none of are 0, and never missing.
	counts := map[v1alpha1.NodeState]int{v1alpha1.NodeLoaded: 0, v1alpha1.NodePending: 0, v1alpha1.NodeWaiting: 0,
		v1alpha1.NodeFailed: 0, v1alpha1.NodeUnsupported: 0, v1alpha1.NodeNotSelected: 0, v1alpha1.NodeRemoved: 0}
	for _, a := range all {
		state, _ := a.NodeState()
		counts[state]++
	}
	for state, n := range counts {
		m.applications.WithLabelValues(string(state)).Set(float64(n))
	}
}

func (m *metrics) fetched(took time.Duration, err error) {
	m.fetchTime.Observe(took.Seconds())
	if err != nil {
		m.fetches.WithLabelValues("failed").Inc()
		return
	}
	m.fetches.WithLabelValues("ok").Inc()
}

func (m *metrics) wrote(verb string, err error) {
	result := "ok"
	if err != nil {
		if result = string(apierrors.ReasonForError(err)); result == "" {
			result = "failed"
		}
	}
	m.writes.WithLabelValues(verb, result).Inc()
}
