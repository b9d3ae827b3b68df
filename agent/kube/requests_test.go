package kube_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/mapread"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/intent/viewread"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/harness/await"
)

// asker is a controller that hands out requests of users.
type asker struct {
	*httptest.Server
	requests chan intent.Envelope

	mu      sync.Mutex
	answers map[string][]string
	// connections counts those that were made, open those of them that did not end, and kept answers after which one was kept.
	connections, open, kept int
	// shown is the token of the last answer.
	shown string
	// by is the replica that handed out the last request, and astray counts answers that came to another one.
	by, astray int
}

// replica is the key of the replica to which a connection leads.
type replica struct{}

func newAsker(t *testing.T) *asker {
	t.Helper()
	a := &asker{requests: make(chan intent.Envelope), answers: map[string][]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/requests", func(w http.ResponseWriter, r *http.Request) {
		select {
		case e := <-a.requests:
			a.mu.Lock()
			a.by = r.Context().Value(replica{}).(int)
			a.mu.Unlock()
			_, _ = w.Write(e)
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("POST /v1/requests/{id}", func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.shown = r.Header.Get("Authorization")
		if !r.Close {
			a.kept++
		}
		if r.Context().Value(replica{}) != a.by {
			a.astray++
		}
		a.answers[r.PathValue("id")] = append(a.answers[r.PathValue("id")], string(body))
	})
	a.Server = httptest.NewUnstartedServer(mux)
	a.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		a.mu.Lock()
		defer a.mu.Unlock()
		switch state {
		case http.StateNew:
			a.connections++
			a.open++
		case http.StateClosed:
			a.open--
		case http.StateActive, http.StateIdle, http.StateHijacked:
		}
	}
	// Two replicas have connections in turn, as behind a Service.
	a.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, replica{}, a.connected()%2)
	}
	a.StartTLS()
	t.Cleanup(a.Close)
	return a
}

// asks has an agent ask a, until the test ends.
func (w *world) asks(a *asker, change func(*kube.Options)) {
	w.t.Helper()
	write := func(name string, body []byte) string {
		path := filepath.Join(w.dir, name)
		if err := os.WriteFile(path, body, 0o600); err != nil {
			w.t.Fatal(err)
		}
		return path
	}
	o := w.options()
	o.Mirror = kube.Mirror{URL: a.URL, ServerName: "example.com", TokenFile: write("token", []byte("t")),
		CAFile: write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw}))}
	change(&o)
	agent, err := kube.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { agent.ServeRequests(ctx) })
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
	w.asks(a, func(o *kube.Options) { o.MapReads = true })
	sealed := func(by *intent.Sealer, n int, change func(*mapread.Request)) intent.Envelope {
		r := mapread.Request{Header: noderequest.NewHeader(w.name, "ann", time.Now()), UID: "u", Operation: mapread.List,
			Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}}
		r.ID = fmt.Sprintf("%032x", n)
		if change != nil {
			change(&r)
		}
		e, err := noderequest.Seal(by, r)
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

// TestAnAgentDescribesItsNodeAndKeepsOneConnection and answers no request of a kind that it was not started to answer.
func TestAnAgentDescribesItsNodeAndKeepsOneConnection(t *testing.T) {
	w, a := newWorld(t, plane), newAsker(t)
	w.asks(a, func(o *kube.Options) { o.View = true })
	send := func(r noderequest.Request) string {
		e, err := noderequest.Seal(w.sealer, r)
		if err != nil {
			t.Fatal(err)
		}
		a.requests <- e
		return r.Head().ID
	}
	read := send(mapread.Request{Header: noderequest.NewHeader(w.name, "ann", time.Now()), UID: "u", Operation: mapread.List,
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}})
	answers := func(id string) []string {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.answers[id]
	}
	for n := range 8 {
		id := send(viewread.Request{Header: noderequest.NewHeader(w.name, "ann", time.Now()), Attachments: n%2 == 1})
		until(t, "an answer", func() bool { return len(answers(id)) == 1 })
		got := answers(id)[0]
		if n%2 == 0 != strings.Contains(got, `{"value":{"kind":"NodeView","apiVersion":"view.skep.dev/v1alpha1","metadata":{"name":"`+w.name+`"}`) ||
			!strings.HasSuffix(got, `{"end":true}`+"\n") {
			t.Errorf("answer %d: %s", n, got)
		}
	}
	// A token and certificates that were renewed count from the next request on.
	renewed := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
	for name, body := range map[string][]byte{"token": []byte("renewed"), "ca.pem": append(renewed, renewed...)} {
		if err := os.WriteFile(filepath.Join(w.dir, name), body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a.mu.Lock()
	if a.astray > 0 {
		t.Errorf("%d answers came to a replica that does not wait for them", a.astray)
	}
	a.mu.Unlock()
	before := a.connected()
	id := send(viewread.Request{Header: noderequest.NewHeader(w.name, "ann", time.Now())})
	until(t, "an answer with the renewed token", func() bool { return len(answers(id)) == 1 })
	if now := a.connected(); a.shown != "Bearer renewed" || now == before {
		t.Errorf("it shows %q, over %d new connections", a.shown, now-before)
	}
	if len(answers(read)) > 0 {
		t.Errorf("a read of a map is answered: %s", answers(read))
	}
	if a.kept > 0 {
		t.Errorf("%d answers leave a connection", a.kept)
	}
	// Also of the request that is not answered. It would end by itself once it was idle for half a minute.
	await.True(t, "the connection that polls to be the only one", 20*time.Second, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.open == 1
	})
}

// connected is how many connections were made.
func (a *asker) connected() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.connections
}
