package kube

import (
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/listen"
)

// SocketName is the file of the local socket in the state directory.
const SocketName = "agent.sock"

// ServeSocket answers on a socket that the owner alone can use, until the
// context ends: all that the BpfNode has no room for. Where it cannot, that is
// logged: nothing that runs depends on it.
func (a *Agent) ServeSocket(ctx context.Context) {
	if err := a.serveSocket(ctx); err != nil {
		a.opts.Log.Warn("cannot answer on the local socket", "error", err)
	}
}

func (a *Agent) serveSocket(ctx context.Context) error {
	l, err := listen.Private(ctx, filepath.Join(a.opts.Node.StateDir, SocketName))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/applications", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.Status(), nil) })
	mux.HandleFunc("GET /v1/programs", func(w http.ResponseWriter, r *http.Request) {
		all, err := a.opts.Inventory(r.Context())
		answer(w, all, err)
	})
	mux.HandleFunc("GET /v1/node", func(w http.ResponseWriter, r *http.Request) {
		node, err := a.viewer.View(r.Context(), view.Scope{})
		answer(w, node, err)
	})
	return listen.Serve(ctx, l, nil, mux)
}

// answer writes v as JSON. A client that went away is no error.
func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}
