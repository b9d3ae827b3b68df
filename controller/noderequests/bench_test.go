package noderequests

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/skep-dev/skep/test/harness/await"
)

// BenchmarkPolls measures what a controller keeps for an agent that polls: an agent each, over TLS.
func BenchmarkPolls(b *testing.B) {
	const agents = 1000
	for b.Loop() {
		h := NewHub()
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.Next(w, r, r.Header.Get("Node")) }))
		s.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
		s.StartTLS()
		before := inUse()
		var open []net.Conn
		for n := range agents {
			conn, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", s.Listener.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
			if _, err := fmt.Fprintf(client, "GET / HTTP/1.1\r\nHost: c\r\nNode: n%d\r\n\r\n", n); err != nil {
				b.Fatal(err)
			}
			// Of the client's side only the socket is kept.
			open = append(open, conn)
		}
		await.True(b, "all agents to poll", time.Minute, func() bool { return h.polling() == agents })
		b.ReportMetric(float64(inUse()-before)/agents/1024, "KiB/agent")
		for _, conn := range open {
			_ = conn.Close()
		}
		s.CloseClientConnections()
		s.Close()
	}
}

// inUse is memory after garbage was collected.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// polling counts the nodes that poll.
func (h *Hub) polling() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, node := range h.nodes {
		if len(node.polls) > 0 {
			n++
		}
	}
	return n
}
