package listen_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skep-dev/skep/listen"
)

// machines is a listener whose connections come from addresses that tests choose.
type machines struct {
	come   chan net.Conn
	closed chan struct{}
}

func (m *machines) Accept() (net.Conn, error) {
	select {
	case conn := <-m.come:
		return conn, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

func (m *machines) Close() error { close(m.closed); return nil }

func (m *machines) Addr() net.Addr { return &net.TCPAddr{IP: net.ParseIP("10.0.0.1"), Port: 9090} }

// from is a connection with addresses.
type from struct {
	net.Conn

	local, remote net.Addr
}

func (f from) LocalAddr() net.Addr  { return f.local }
func (f from) RemoteAddr() net.Addr { return f.remote }

// dial connects from an address, and returns the client's end.
func (m *machines) dial(address string) net.Conn {
	client, server := net.Pipe()
	m.come <- from{server, m.Addr(), &net.TCPAddr{IP: net.ParseIP(address), Port: 40000}}
	return client
}

// get asks over a connection, and returns the status, or 0 where it is closed.
func get(conn net.Conn) int {
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
		return 0
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// serve runs a server in a bubble until use returns.
func serve(t *testing.T, use func(m *machines)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m := &machines{make(chan net.Conn), make(chan struct{})}
		ended := make(chan error)
		go func() {
			ended <- listen.Serve(ctx, m, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
		}()
		use(m)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestConnectionsOfOneAddressLeaveRoomForOthers(t *testing.T) {
	serve(t, func(m *machines) {
		for i := range 16 {
			if code := get(m.dial("10.0.0.7")); code != http.StatusOK {
				t.Fatalf("connection %d is answered %d", i, code)
			}
		}
		if code := get(m.dial("10.0.0.7")); code != 0 {
			t.Errorf("one more is answered %d", code)
		}
		if code := get(m.dial("10.0.0.8")); code != http.StatusOK {
			t.Errorf("another address is answered %d", code)
		}
	})
}

func TestConnectionsOfManyAddressesLeaveRoomForThisMachine(t *testing.T) {
	serve(t, func(m *machines) {
		let := 0
		for i := range 1000 {
			if get(m.dial(fmt.Sprintf("10.1.%d.%d", i/200, i%200))) == http.StatusOK {
				let++
			}
		}
		if let != 512 {
			t.Errorf("%d of 1000 were let in", let)
		}
		if code := get(m.dial("10.0.0.1")); code != http.StatusOK {
			t.Errorf("a probe of this machine is answered %d", code)
		}
	})
}

func TestAConnectionThatSaysNothingEnds(t *testing.T) {
	for sentence, say := range map[string]string{
		"nothing":                          "",
		"half a request":                   "GET /healthz HTTP/1.1\r\n",
		"a request, and then nothing":      "GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n",
		"a body that does not come to end": "POST / HTTP/1.1\r\nHost: node\r\nContent-Length: 100\r\n\r\nx",
	} {
		t.Run(sentence, func(t *testing.T) {
			serve(t, func(m *machines) {
				conn, began := m.dial("10.0.0.7"), time.Now()
				if _, err := io.WriteString(conn, say); err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, conn); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > time.Minute {
					t.Errorf("it is kept for %v", took)
				}
				if code := get(m.dial("10.0.0.7")); code != http.StatusOK {
					t.Errorf("the next is answered %d", code)
				}
			})
		})
	}
}

func TestPlacesAreGivenBack(t *testing.T) {
	serve(t, func(m *machines) {
		for i := range 100 {
			conn := m.dial("10.0.0.7")
			if code := get(conn); code != http.StatusOK {
				t.Fatalf("connection %d is answered %d", i, code)
			}
			_ = conn.Close()
			synctest.Wait()
		}
	})
}
