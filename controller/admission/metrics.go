package admission

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/controller/application"
)

// outcome is what became of one request.
type outcome string

// The outcomes.
const (
	// allowed was evaluated and found good; unchanged asks for nothing new.
	allowed, unchanged outcome = "allowed", "unchanged"
	// warned is denied by policies that all say admission: Warn.
	warned outcome = "warned"
	denied outcome = "denied"
	// unverified could not be determined in time.
	unverified outcome = "unverified"
	malformed  outcome = "malformed"
)

// Metrics are what Prometheus sees of admission; how long requests take is
// among controller-runtime's own.
type Metrics struct {
	requests, denials *prometheus.CounterVec

	mu sync.Mutex
	// rules are those that were counted.
	rules map[string]bool
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_admission_requests_total",
			Help: "Requests to admit an object, by its kind and by what came of it: allowed, unchanged, warned, denied, unverified or malformed.",
		}, []string{"kind", "verdict"}),
		denials: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_admission_denials_total",
			Help: "Requests to admit an application that a rule denied, by the rule.",
		}, []string{"rule"}),
		rules: map[string]bool{},
	}
	registry.MustRegister(m.requests, m.denials)
	return m
}

// observe counts one request, and each rule that denied it once.
func (m *Metrics) observe(kind string, a answer) {
	m.requests.WithLabelValues(kind, string(a.outcome)).Inc()
	counted := map[string]bool{}
	for _, rule := range a.rules {
		if !counted[rule] {
			counted[rule] = true
			m.denials.WithLabelValues(m.named(rule)).Inc()
		}
	}
}

// named is what a rule is counted as.
func (m *Metrics) named(rule string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.rules[rule] && len(m.rules) >= application.MaxRules {
		return application.OtherRules
	}
	m.rules[rule] = true
	return rule
}
