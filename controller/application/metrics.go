package application

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
)

// Metrics are what Prometheus sees of the applications of a cluster.
type Metrics struct {
	intents  *prometheus.CounterVec
	verdicts *prometheus.CounterVec
	denials  ruleGauge
	audited  ruleGauge
	nodes    *prometheus.GaugeVec
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
			Name: "skep_intents_sealed_total", Help: "Intents written, by what they do: seal or unload."}, []string{"action"}),
		verdicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_verdicts_total", Help: "Evaluations, by what came of them: allowed, denied or unknown."}, []string{"verdict"}),
		denials: newRuleGauge(prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "skep_denials", Help: "Applications denied now, by rule."}, []string{"rule"})),
		audited: newRuleGauge(prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "skep_audited_denials", Help: "Applications that a policy in Audit mode would deny now, by rule."}, []string{"rule"})),
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "skep_application_nodes", Help: "Nodes of each application, by state."}, []string{"kind", "namespace", "name", "state"}),
	}
	registry.MustRegister(m.intents, m.verdicts, m.denials.gauge, m.audited.gauge, m.nodes)
	return m
}

// Sealed counts one intent that was written.
func (m *Metrics) Sealed(tombstone bool) {
	move := lifecycle.Seal
	if tombstone {
		move = lifecycle.Unload
	}
	m.intents.WithLabelValues(string(move)).Inc()
}

// observe counts one evaluation and what the nodes say.
func (m *Metrics) observe(app application, s lifecycle.Observation) {
	verdict := "denied"
	switch {
	case s.Err != nil:
		verdict = "unknown"
	case s.Verdict.Allowed():
		verdict = "allowed"
	}
	m.verdicts.WithLabelValues(verdict).Inc()
	id := app.Identity()
	var decision policies.Decision
	if s.Err == nil {
		decision = s.Verdict.Decision()
	}
	m.denials.replace(id, decision.Denied)
	m.audited.replace(id, decision.Audited)
	n := app.Report().Nodes
	if n == nil {
		m.forgetNodes(id)
		return
	}
	for state, count := range map[string]int32{
		"loaded": n.Loaded, "pending": n.Pending, "retained": n.Retained, "failed": n.Failed,
		"unsupported": n.Unsupported, "unreachable": n.Unreachable,
	} {
		m.nodes.WithLabelValues(id.Kind, id.Namespace, id.Name, state).Set(float64(count))
	}
}

// reset drops every application: another replica counts them.
func (m *Metrics) reset() {
	m.denials.reset()
	m.audited.reset()
	m.nodes.Reset()
}

// forget drops an application that is gone.
func (m *Metrics) forget(id v1alpha1.Identity) {
	m.denials.replace(id, nil)
	m.audited.replace(id, nil)
	m.forgetNodes(id)
}

// forgetNodes drops what nodes said of an application that none is to run.
func (m *Metrics) forgetNodes(id v1alpha1.Identity) {
	m.nodes.DeletePartialMatch(prometheus.Labels{"kind": id.Kind, "namespace": id.Namespace, "name": id.Name})
}

// ruleGauge counts, by rule, the applications that are denied now.
type ruleGauge struct {
	gauge *prometheus.GaugeVec

	mu *sync.Mutex
	// of holds, per application, the rules that deny it now, as they are counted.
	of map[v1alpha1.Identity][]string
	// byRule counts them by rule.
	byRule map[string]int
}

func newRuleGauge(gauge *prometheus.GaugeVec) ruleGauge {
	return ruleGauge{gauge: gauge, mu: &sync.Mutex{}, of: map[v1alpha1.Identity][]string{}, byRule: map[string]int{}}
}

// replace sets the reasons that deny an application. A rule that denies none is
// forgotten: its policy may be gone.
func (g ruleGauge) replace(id v1alpha1.Identity, reasons []policies.Reason) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.of[id]
	var now []string
	for _, rule := range policies.Rules(reasons) {
		if rule = g.named(rule); !slices.Contains(now, rule) {
			now = append(now, rule)
			g.byRule[rule]++
		}
	}
	g.of[id] = now
	if len(now) == 0 {
		delete(g.of, id)
	}
	for _, rule := range before {
		g.byRule[rule]--
	}
	for _, rule := range slices.Concat(before, now) {
		if g.byRule[rule] == 0 {
			delete(g.byRule, rule)
			g.gauge.DeleteLabelValues(rule)
			continue
		}
		g.gauge.WithLabelValues(rule).Set(float64(g.byRule[rule]))
	}
}

// named is what a rule is counted as.
func (g ruleGauge) named(rule string) string {
	if g.byRule[rule] == 0 && len(g.byRule) >= MaxRules {
		return OtherRules
	}
	return rule
}

// reset drops every application.
func (g ruleGauge) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.of)
	clear(g.byRule)
	g.gauge.Reset()
}
