package mirror

import (
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestARequestToReadAMapGoesToTheReplicaThatReachesTheNode(t *testing.T) {
	var authorities []byte
	replica := func(answer http.HandlerFunc) string {
		s := httptest.NewTLSServer(answer)
		t.Cleanup(s.Close)
		authorities = append(authorities, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})...)
		return strings.TrimPrefix(s.URL, "https://")
	}
	first := replica(http.NotFound)
	second := replica(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "sealed" || r.URL.Path != "/v1/nodes/one/requests/id1" || r.Header.Get("Authorization") != "Bearer t" {
			t.Errorf("it is asked %s %q %v", r.URL, body, err)
		}
		_, _ = io.WriteString(w, "answer")
	})
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("t\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// One is gone with its node, and its address still among the others: nothing answers there.
	gone, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	addresses := []string{"127.0.0.1:1", gone.Addr().String(), first, second}
	p := &Peers{ServerName: "example.com", TokenFile: token, Addresses: func(context.Context) ([]string, error) { return addresses, nil },
		Authorities: func(context.Context) ([]byte, error) { return authorities, nil }}
	inTime, cancel := context.WithTimeout(t.Context(), relayWithin-time.Second)
	defer cancel()
	answer, err := p.Relay(inTime, "one", "id1", []byte("sealed"))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer)
	if string(body) != "answer" || err != nil || answer.Close() != nil {
		t.Errorf("%q %v", body, err)
	}
	for _, addresses = range [][]string{{first}, {}} {
		p.until = time.Time{}
		if answer, err := p.Relay(t.Context(), "one", "id1", []byte("sealed")); err == nil {
			t.Errorf("of %v one answers: %v", addresses, answer)
		}
	}
}
