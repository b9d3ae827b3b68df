package application

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
)

// Metrics are what Prometheus sees of the applications of a cluster.
type Metrics struct {
	intents  *prometheus.CounterVec
	verdicts *prometheus.CounterVec
	denials  *prometheus.GaugeVec
	nodes    *prometheus.GaugeVec

	mu sync.Mutex
	// denied holds, per application, the rules that deny it now, as they are counted.
	denied map[v1alpha1.Identity][]string
	// byRule counts them by rule.
	byRule map[string]int
}

// MaxRules is how many rules are counted apart, and OtherRules what the rest is
// counted as: who writes a policy chooses the names of its rules.
const (
	MaxRules   = 1024
	OtherRules = "other"
)

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		intents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_intents_sealed_total", Help: "Intents written, by what they say: seal or bury."}, []string{"move"}),
		verdicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_verdicts_total", Help: "Judgements, by what came of them: allowed, denied or unknown."}, []string{"verdict"}),
		denials: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "skep_denials", Help: "Applications denied now, by rule."}, []string{"rule"}),
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "skep_application_nodes", Help: "Nodes of each application, by state."}, []string{"kind", "namespace", "name", "state"}),
		denied: map[v1alpha1.Identity][]string{}, byRule: map[string]int{},
	}
	registry.MustRegister(m.intents, m.verdicts, m.denials, m.nodes)
	return m
}

// sealed counts one intent written.
func (m *Metrics) sealed(tombstone bool) {
	move := gate.MoveSeal
	if tombstone {
		move = gate.MoveBury
	}
	m.intents.WithLabelValues(string(move)).Inc()
}

// observe counts one judgement and what the nodes say.
func (m *Metrics) observe(app application, s gate.Standing) {
	verdict := "denied"
	switch {
	case s.Err != nil:
		verdict = "unknown"
	case s.Verdict.Allowed():
		verdict = "allowed"
	}
	m.verdicts.WithLabelValues(verdict).Inc()
	id := app.Identity()
	var rules []string
	if s.Err == nil {
		for _, reason := range s.Verdict.Decision().Denied {
			rules = append(rules, reason.Rule)
		}
	}
	m.replace(id, rules)
	n := app.Report().Nodes
	if n == nil {
		m.forgetNodes(id)
		return
	}
	for state, count := range map[string]int32{
		"loaded": n.Loaded, "pending": n.Pending, "held": n.Held, "failed": n.Failed,
		"unsupported": n.Unsupported, "unreachable": n.Unreachable,
	} {
		m.nodes.WithLabelValues(id.Kind, id.Namespace, id.Name, state).Set(float64(count))
	}
}

// reset drops every application: another replica counts them.
func (m *Metrics) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.denied)
	clear(m.byRule)
	m.denials.Reset()
	m.nodes.Reset()
}

// forget drops an application that is gone.
func (m *Metrics) forget(id v1alpha1.Identity) {
	m.replace(id, nil)
	m.forgetNodes(id)
}

// forgetNodes drops what nodes said of an application that none is to run.
func (m *Metrics) forgetNodes(id v1alpha1.Identity) {
	m.nodes.DeletePartialMatch(prometheus.Labels{"kind": id.Kind, "namespace": id.Namespace, "name": id.Name})
}

// replace sets the rules that deny an application. A rule that denies none is
// forgotten: its policy may be gone.
func (m *Metrics) replace(id v1alpha1.Identity, rules []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.denied[id]
	now := make([]string, 0, len(rules))
	for _, rule := range rules {
		rule = m.named(rule)
		now = append(now, rule)
		m.byRule[rule]++
	}
	m.denied[id] = now
	if len(now) == 0 {
		delete(m.denied, id)
	}
	for _, rule := range before {
		m.byRule[rule]--
	}
	for _, rule := range slices.Concat(before, now) {
		if m.byRule[rule] == 0 {
			delete(m.byRule, rule)
			m.denials.DeleteLabelValues(rule)
			continue
		}
		m.denials.WithLabelValues(rule).Set(float64(m.byRule[rule]))
	}
}

// named is what a rule is counted as.
func (m *Metrics) named(rule string) string {
	if m.byRule[rule] == 0 && len(m.byRule) >= MaxRules {
		return OtherRules
	}
	return rule
}
