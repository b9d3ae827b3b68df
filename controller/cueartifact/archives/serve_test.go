package archives

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
)

func TestClientsThatLeaveConnectionsOpenAreAllServed(t *testing.T) {
	store, err := New(Options{Dir: t.TempDir(), Address: ":9790"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- (&Server{Store: store, Listen: func() (net.Listener, error) { return l, nil }}).Start(ctx)
	}()
	for i := range 50 {
		transport := &http.Transport{}
		t.Cleanup(transport.CloseIdleConnections)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			t.Fatalf("fetch %d: %v", i+1, err)
		}
		// A connection whose answer was read is kept by the client.
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			t.Error(err)
		}
		_ = answer.Body.Close()
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
