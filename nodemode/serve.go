package nodemode

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/skep-dev/skep/listen"
)

// SocketName is the file of the local socket in the state folder.
const SocketName = "skep.sock"

// serveSocket answers skep status and its like. The socket can be used by its
// owner alone.
func (h *Host) serveSocket(ctx context.Context) error {
	listener, err := listen.Private(ctx, filepath.Join(h.opts.State, SocketName))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { answer(w, h.Status()) })
	mux.HandleFunc("GET /v1/node", func(w http.ResponseWriter, r *http.Request) { serveNode(h.viewer, w, r) })
	mux.HandleFunc("POST /v1/confirm", func(w http.ResponseWriter, r *http.Request) {
		released, err := h.Confirm(r.URL.Query().Get("revision"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		answer(w, released)
	})
	mux.HandleFunc("POST /v1/reconcile", func(w http.ResponseWriter, r *http.Request) {
		names, err := h.Reconcile(r.URL.Query().Get("application"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		answer(w, names)
	})
	return listen.Serve(ctx, listener, nil, mux)
}

// answer writes v as JSON. A client that went away is nobody's error.
func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// serveMetrics answers Prometheus and health probes.
func (h *Host) serveMetrics(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	var o promhttp.HandlerOpts
	listen.Continue(&o, h.metrics.registry, h.opts.Log)
	mux.Handle("GET /metrics", promhttp.HandlerFor(h.metrics.registry, o))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if late := h.late(); late > 0 {
			http.Error(w, fmt.Sprintf("no sync for %s", late.Round(time.Second)), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	return listen.Serve(ctx, l, nil, mux)
}

// late tells how long ago the last sync was, where that is too long: a host
// that syncs no more is not healthy, while a source out of reach is no reason
// to restart it.
func (h *Host) late() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := h.status.Synced
	if last.IsZero() {
		last = h.began
	}
	since := h.opts.Now().Sub(last)
	if since < 3*h.opts.Interval+time.Minute {
		return 0
	}
	return since
}
