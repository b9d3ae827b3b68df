// Package ui serves one read-only page from the command line's own process to a browser on this machine, with the user's own rights: it
// asks the socket of a host or the API server of a cluster. It must not change anything, run in another process than the user's, or have
// the browser ask anybody else.
package ui

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"io/fs"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/listen"
)

// page is all that the browser loads.
//
//go:embed page
var page embed.FS

// types are the media types of the page's files: those of the machine may be others.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// The bounds: how often the source is asked for the same, however many tabs are open, and for an application on its nodes; how long it may
// take, and how many times as long it is left alone; how many answers are kept, how many bytes of one and of all.
const (
	every      = 2 * time.Second
	everyView  = 10 * time.Second
	patience   = 20 * time.Second
	rest       = 4
	maxAnswers = 32
	maxBytes   = 64 << 20
	// The largest answer is kept with another.
	maxAllBytes = 2 * maxBytes
)

// Server serves the page.
type Server struct {
	guard    *guard
	source   Source
	answers  *answers
	history  *history
	listener net.Listener
}

// Listen takes a port of the loopback interface, a free one for 0, and serves nothing yet.
func Listen(ctx context.Context, port int, source Source) (*Server, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, fmt.Errorf("listen on port %d: %w; choose another by --port, or leave it out for a free one", port, err)
	}
	return &Server{guard: newGuard(l.Addr().(*net.TCPAddr).Port), source: source, answers: newAnswers(), history: newHistory(), listener: l}, nil
}

// Address is what the user opens, once.
func (s *Server) Address() string { return s.guard.address() }

// Serve answers the browser until ctx ends. It asks for what the page shows first while the user opens it.
func (s *Server) Serve(ctx context.Context) error {
	go s.answers.prepare(ctx, overview, s.overview)
	return listen.Serve(ctx, s.listener, nil, s.guard.protect(s.handler()))
}

// handler is the page and its data, below the guard's folder.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", file)
	mux.HandleFunc("GET /data/overview", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, r, overview, every, s.overview)
	})
	mux.HandleFunc("GET /data/application", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		id := v1alpha1.Identity{Kind: q.Get("kind"), Namespace: q.Get("namespace"), Name: q.Get("name")}
		s.answer(w, r, "application/"+id.Kind+"/"+id.Namespace+"/"+id.Name, everyView, func(ctx context.Context) (any, error) {
			return s.source.Application(ctx, id)
		})
	})
	mux.HandleFunc("GET /data/node", func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get("name")
		s.answer(w, r, "node/"+name, every, func(ctx context.Context) (any, error) { return s.node(ctx, name) })
	})
	return mux
}

// overview is the key of the overview.
const overview = "overview"

// overview asks for the overview.
func (s *Server) overview(ctx context.Context) (any, error) { return s.source.Overview(ctx) }

// nodePage is a node, and what its programs cost in the last minutes.
type nodePage struct {
	view.NodeView

	Cost []window `json:"cost"`
}

// node asks for a node, and remembers what its programs cost.
func (s *Server) node(ctx context.Context, name string) (nodePage, error) {
	if len(name) > maxName {
		return nodePage{}, fmt.Errorf("no node has a name of %d bytes", len(name))
	}
	n, err := s.source.Node(ctx, name)
	if err != nil {
		return nodePage{}, err
	}
	return nodePage{n, s.history.add(name, n)}, nil
}

// maxName bounds a node's name, as Kubernetes does.
const maxName = 253

// file serves a file of the page.
func file(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
	if name == "" {
		name = "index.html"
	}
	body, err := fs.ReadFile(page, "page/"+name)
	kind, known := types[path.Ext(name)]
	if err != nil || !known {
		http.Error(w, "there is no such file", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(body) //nolint:gosec // It is a file of the binary's.
}

// failure is what the page shows in place of an answer.
type failure struct {
	Error string `json:"error"`
}

// answer writes what read returned lately, as JSON, unless the browser has it.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, key string, fresh time.Duration, read reader) {
	a := s.answers.get(r.Context(), key, fresh, read)
	w.Header().Set("Content-Type", "application/json")
	if a.err != nil {
		w.WriteHeader(http.StatusBadGateway)
		_ = json.NewEncoder(w).Encode(failure{a.err.Error()})
		return
	}
	w.Header().Set("ETag", a.tag)
	if r.Header.Get("If-None-Match") == a.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(a.body)
}

// encode makes an answer of a value.
func encode(v any, err error, seed maphash.Seed) answer {
	if err != nil {
		return answer{err: err}
	}
	body, err := json.Marshal(v)
	switch {
	case err != nil:
		return answer{err: fmt.Errorf("write the answer: %w", err)}
	case len(body) > maxBytes:
		return answer{err: fmt.Errorf("the answer has %d MiB, and the page takes %d: ask for less on the command line", len(body)>>20, maxBytes>>20)}
	}
	return answer{body: body, tag: fmt.Sprintf(`"%x"`, maphash.Bytes(seed, body))}
}
