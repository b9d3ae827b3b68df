// Package metrics counts for Prometheus what a gate asks and what it remembers,
// whoever calls it. It knows nothing of applications, so its series
// are as many on a large cluster as on one host.
package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/gate"
)

// Metrics is a gate.Observer.
type Metrics struct {
	signatures *prometheus.CounterVec
	lookups    *prometheus.CounterVec
	requests   *prometheus.CounterVec
}

// New registers the metrics. Those that count nothing yet are 0 and not missing.
func New(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		signatures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_signature_lookups_total", Help: "Images whose signatures were wanted, by where they came from: memory, store, registry, stale or failed."},
			[]string{"source"}),
		lookups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_evaluation_cache_lookups_total", Help: "Looks at what was worked out before, by what: evidence, facts or decisions, and by result: " +
				"hit or miss."}, []string{"cache", "result"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_registry_requests_total", Help: "Requests to registries, by the status of the answer; none where there was no answer."}, []string{"code"}),
	}
	for _, from := range gate.Origins() {
		m.signatures.WithLabelValues(string(from))
	}
	for _, what := range gate.Recalls() {
		m.lookups.WithLabelValues(string(what), hit)
		m.lookups.WithLabelValues(string(what), miss)
	}
	m.requests.WithLabelValues(none)
	registry.MustRegister(m.signatures, m.lookups, m.requests)
	return m
}

// The values of labels that the gate has no words for.
const (
	hit, miss = "hit", "miss"
	none      = "none"
)

// Signatures implements gate.Observer.
func (m *Metrics) Signatures(from gate.Origin) { m.signatures.WithLabelValues(string(from)).Inc() }

// Looked implements gate.Observer.
func (m *Metrics) Looked(what gate.Recall, remembered bool) {
	result := miss
	if remembered {
		result = hit
	}
	m.lookups.WithLabelValues(string(what), result).Inc()
}

// Answered counts an answer of a registry, as registry.Options has it told. What
// no server should say is none of the label's values.
func (m *Metrics) Answered(status int) {
	code := none
	if status >= 100 && status < 600 {
		code = strconv.Itoa(status)
	}
	m.requests.WithLabelValues(code).Inc()
}
