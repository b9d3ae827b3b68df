package mirror

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skep-dev/skep/controller/noderequests"
)

// TestPollsAndAnswersOfAnAgentShareAConnection though a poll waits outside of the server.
func TestPollsAndAnswersOfAnAgentShareAConnection(t *testing.T) {
	hub := noderequests.NewHub()
	of := serve(nil, nil)
	s := of.Server
	s.Requests = hub
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	s.Listener, s.Certificate = listener, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certified.TLS.Certificates[0], nil }
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()

	opened := atomic.Int32{}
	agent := certified.Client()
	agent.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		opened.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, listener.Addr().String())
	}
	token := of.issuer.token("agent", "one", "")
	send := func(method, path string, body io.Reader) (code int, answer string) {
		r, err := http.NewRequestWithContext(t.Context(), method, "https://example.com/v1/requests"+path, body)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := agent.Do(r)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer response.Body.Close()
		all, err := io.ReadAll(response.Body)
		if err != nil {
			t.Error(err)
		}
		return response.StatusCode, string(all)
	}
	for n := range 5 {
		id, done := fmt.Sprint("id", n), make(chan struct{})
		go func() {
			defer close(done)
			if code, envelope := send(http.MethodGet, "", nil); code != http.StatusOK || envelope != "sealed "+id {
				t.Errorf("a poll is answered %d %q", code, envelope)
			}
			if code, _ := send(http.MethodPost, "/"+id, strings.NewReader("answer "+id)); code != http.StatusOK {
				t.Errorf("an answer is answered %d", code)
			}
		}()
		var answer io.ReadCloser
		for answer, err = nil, noderequests.ErrNotHere; errors.Is(err, noderequests.ErrNotHere); {
			answer, err = hub.Ask(t.Context(), "one", id, []byte("sealed "+id), time.Minute)
		}
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(answer); string(body) != "answer "+id || err != nil || answer.Close() != nil {
			t.Errorf("%q %v", body, err)
		}
		<-done
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("five polls and answers took %d connections", n)
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
