package kube_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/mapread"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// asker is a controller that hands out requests to read maps.
type asker struct {
	*httptest.Server
	requests chan intent.Envelope

	mu      sync.Mutex
	answers map[string][]string
}

func newAsker(t *testing.T) *asker {
	t.Helper()
	a := &asker{requests: make(chan intent.Envelope), answers: map[string][]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/map-reads", func(w http.ResponseWriter, r *http.Request) {
		select {
		case e := <-a.requests:
			_, _ = w.Write(e)
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("POST /v1/map-reads/{id}", func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.answers[r.PathValue("id")] = append(a.answers[r.PathValue("id")], string(body))
	})
	a.Server = httptest.NewTLSServer(mux)
	t.Cleanup(a.Close)
	return a
}

// asks has an agent ask a, until the test ends.
func (w *world) asks(a *asker) {
	w.t.Helper()
	write := func(name string, body []byte) string {
		path := filepath.Join(w.dir, name)
		if err := os.WriteFile(path, body, 0o600); err != nil {
			w.t.Fatal(err)
		}
		return path
	}
	o := w.options()
	o.MapReads = true
	o.Mirror = kube.Mirror{URL: a.URL, ServerName: "example.com", TokenFile: write("token", []byte("t")),
		CAFile: write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw}))}
	agent, err := kube.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { agent.ServeMapReads(ctx) })
	w.t.Cleanup(func() {
		cancel()
		serving.Wait()
		if err := agent.Close(); err != nil {
			w.t.Error(err)
		}
	})
}

func TestAnAgentAnswersEachReadOnceAndOnlyThoseThatTheControllerSealedForItsNode(t *testing.T) {
	w, a := newWorld(t, plane), newAsker(t)
	w.asks(a)
	sealed := func(by *intent.Sealer, n int, change func(*mapread.Request)) intent.Envelope {
		r := mapread.Request{ID: fmt.Sprintf("%032x", n), Node: w.name, User: "ann", UID: "u", Operation: mapread.List,
			Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}, Until: time.Now().Add(mapread.TTL).UnixMilli()}
		if change != nil {
			change(&r)
		}
		e, err := mapread.Seal(by, r)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	first := sealed(w.sealer, 1, nil)
	for _, e := range []intent.Envelope{
		first, first, sealed(seals.New(t).Sealer, 2, nil), sealed(w.sealer, 3, func(r *mapread.Request) { r.Node = "another" }),
		sealed(w.sealer, 4, func(r *mapread.Request) { r.Until -= time.Hour.Milliseconds() }), []byte("{"), sealed(w.sealer, 5, nil),
	} {
		a.requests <- e
	}
	until(t, "five requests to be rejected, and two answered", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.answers) >= 2 && w.log.times("is rejected") >= 5
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	for n := range 6 {
		id := fmt.Sprintf("%032x", n)
		answered := len(a.answers[id])
		if (n == 1 || n == 5) != (answered == 1) || answered > 1 {
			t.Errorf("request %d is answered %d times: %q", n, answered, a.answers[id])
		}
	}
}
