package archives

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/skep-dev/skep/listen"
)

// served matches the paths of archives: kind, namespace, name, and the digest of the content.
var served = regexp.MustCompile(`^/cueartifact/[a-z0-9.-]+/[a-z0-9.-]+/[0-9a-f]{64}\.tar\.gz$`)

// Server serves the archives of a store while this replica leads: only the leader has them all.
// It asks nobody who they are, as Flux's own servers of artifacts do not.
type Server struct {
	Store *Store
	// Address is where to listen; Listen takes its place in tests.
	Address string
	Listen  func() (net.Listener, error)
}

// Start serves until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	open := s.Listen
	if open == nil {
		open = func() (net.Listener, error) { return (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address) }
	}
	l, err := open()
	if err != nil {
		return fmt.Errorf("serve artifacts: %w", err)
	}
	return listen.Serve(ctx, l, nil, s)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Clients such as kustomize-controller make a transport for each fetch and leave its
	// connection open, of which package listen lets one address have few.
	w.Header().Set("Connection", "close")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "artifacts are read alone", http.StatusMethodNotAllowed)
		return
	}
	if !served.MatchString(r.URL.Path) || strings.Contains(r.URL.Path, "..") {
		http.NotFound(w, r)
		return
	}
	root, err := os.OpenRoot(s.Store.storage.BasePath)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer root.Close()
	f, err := root.Open(filepath.FromSlash(strings.TrimPrefix(r.URL.Path, "/")))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/gzip")
	http.ServeContent(w, r, "", info.ModTime(), f)
}
