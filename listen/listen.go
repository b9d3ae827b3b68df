// Package listen serves HTTP to whoever reaches an address, within bounds: a process
// that keeps programs in the kernel is not to run out of memory or descriptors because
// somebody keeps connections open.
//
// It owns how many connections there are, how long one may take, and that a local socket is
// its owner's alone. It knows no URL, and asks nobody who they are.
package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// The bounds: connections of one address and of all other machines together, and how
// long a request is read, an answer is written and nothing is said. What profiles the
// process writes for 30 seconds.
const (
	ofOne       = 16
	ofAll       = 512
	readTime    = 10 * time.Second
	writeTime   = 2 * time.Minute
	idleTime    = 30 * time.Second
	maxHeader   = 64 << 10
	unixNetwork = "unix"
)

// Serve answers on a listener until ctx ends, over TLS where config is not nil.
// Connections beyond the bounds are closed at once. Those of this machine, such as a
// kubelet's probes, count by themselves: whatever others do, they are let in.
func Serve(ctx context.Context, l net.Listener, config *tls.Config, h http.Handler) error {
	return ServeUpTo(ctx, l, ofOne, config, h)
}

// ServeUpTo is Serve with another bound of the connections of one address.
func ServeUpTo(ctx context.Context, l net.Listener, ofAddress int, config *tls.Config, h http.Handler) error {
	server := &http.Server{
		Handler: h, TLSConfig: config,
		ReadHeaderTimeout: readTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader,
		// Streams of HTTP/2 would be one more thing to count.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	serve := func(l net.Listener) error { return server.Serve(l) }
	if config != nil {
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	if err := serve(&bounded{Listener: l, ofAddress: ofAddress}); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// bounded lets in no more connections than the bounds allow.
type bounded struct {
	net.Listener

	ofAddress int
	mu        sync.Mutex
	// of counts connections by address, and others those of other machines.
	of     map[string]int
	others int
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if leave, ok := b.enter(conn); ok {
			return &counted{Conn: conn, leave: sync.OnceFunc(leave)}, nil
		}
		_ = conn.Close()
	}
}

// enter counts a connection, or returns false where there is no room for it.
func (b *bounded) enter(conn net.Conn) (leave func(), ok bool) {
	if conn.RemoteAddr().Network() == unixNetwork {
		return func() {}, true
	}
	address, other := addressOf(conn.RemoteAddr()), 1
	if address == addressOf(conn.LocalAddr()) {
		other = 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[address] >= b.ofAddress || other > 0 && b.others >= ofAll {
		return nil, false
	}
	if b.of == nil {
		b.of = map[string]int{}
	}
	b.of[address]++
	b.others += other
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.of[address]--; b.of[address] == 0 {
			delete(b.of, address)
		}
		b.others -= other
	}, true
}

// addressOf is an address without its port.
func addressOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}

// counted is a connection that has a place.
type counted struct {
	net.Conn

	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
