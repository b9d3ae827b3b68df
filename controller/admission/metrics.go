package admission

import "github.com/prometheus/client_golang/prometheus"

// outcome is what became of one request.
type outcome string

// The outcomes.
const (
	// allowed was judged and found good; unchanged asks for nothing new.
	allowed, unchanged outcome = "allowed", "unchanged"
	// warned is denied by policies that all say admission: Warn.
	warned outcome = "warned"
	denied outcome = "denied"
	// unverified could not be told in time.
	unverified outcome = "unverified"
	malformed  outcome = "malformed"
)

// Metrics are what Prometheus sees of admission; how long requests take is
// among controller-runtime's own.
type Metrics struct{ requests *prometheus.CounterVec }

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "skep_admission_requests_total",
		Help: "Requests to admit an object, by its kind and by what came of it: allowed, unchanged, warned, denied, unverified or malformed.",
	}, []string{"kind", "verdict"})}
	registry.MustRegister(m.requests)
	return m
}

// observe counts one request.
func (m *Metrics) observe(kind string, o outcome) {
	m.requests.WithLabelValues(kind, string(o)).Inc()
}
