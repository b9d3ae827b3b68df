package kube

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/kubeauth"
	"github.com/skep-dev/skep/listen"
)

// stuckAfter is how long a turn may take. Loads run beside the turns and do not
// count: an agent whose turns do not end heals nothing.
const stuckAfter = 5 * time.Minute

// health is what probes ask for.
type health struct {
	mu sync.Mutex
	// began is when the first turn began, and last when a turn ended last.
	began, last time.Time
	// now is the clock.
	now func() time.Time
}

// begins notes that the first turn is about to begin.
func (h *health) begins() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.began = h.now()
}

// passed notes that the agent went round.
func (h *health) passed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = h.now()
}

// since returns how long ago that was, and false where it was never.
func (h *health) since() (time.Duration, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now().Sub(h.last), !h.last.IsZero()
}

// stuck returns how long the turn takes that is in progress, 0 where none began.
func (h *health) stuck() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.began.IsZero() {
		return 0
	}
	if h.last.After(h.began) {
		return h.now().Sub(h.last)
	}
	return h.now().Sub(h.began)
}

// healthy is nil unless the agent stands still. That the API server, the mirror
// or a program fails is no reason to start the agent again.
func (a *Agent) healthy() error {
	if since := a.health.stuck(); since > stuckAfter {
		return fmt.Errorf("no turn ended for %s", since.Round(time.Second))
	}
	return nil
}

// ready is nil when what is on disk or came from the API server was worked on
// once.
func (a *Agent) ready() error {
	if _, ever := a.health.since(); ever {
		return nil
	}
	if a.self.labels() == nil {
		return fmt.Errorf("node %s was not seen yet, and its labels are not on disk", a.opts.NodeName)
	}
	return fmt.Errorf("the first turn is not done")
}

// newGuard asks the API server over a connection of its own: no scrape keeps a
// watch or a report waiting.
func newGuard(config *rest.Config) (*kubeauth.Guard, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("reach API server: %w", err)
	}
	return kubeauth.New(config, client)
}

// Serve answers what Handler does on a listener, over TLS unless Options says that
// metrics are open, until the context ends.
func (a *Agent) Serve(ctx context.Context, l net.Listener) error {
	var config *tls.Config
	if a.guard != nil {
		certificate, err := selfSigned(a.opts.NodeName, time.Now())
		if err != nil {
			return err
		}
		config = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}}
	}
	return listen.Serve(ctx, l, config, a.Handler())
}

// Handler answers Prometheus at /metrics, where it may read that, and probes at
// /healthz and /readyz.
func (a *Agent) Handler() *http.ServeMux {
	mux := http.NewServeMux()
	var o promhttp.HandlerOpts
	listen.Continue(&o, a.metrics.registry, a.opts.Log)
	metrics := promhttp.HandlerFor(a.metrics.registry, o)
	if a.guard != nil {
		metrics = a.guard.Handler(metrics, func(err error) { a.opts.Log.Warn("cannot review who asks for metrics", "error", scrub(err)) })
	}
	mux.Handle("GET /metrics", metrics)
	for path, probe := range map[string]func() error{"GET /healthz": a.healthy, "GET /readyz": a.ready} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if err := probe(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write([]byte("ok\n"))
		})
	}
	return mux
}
