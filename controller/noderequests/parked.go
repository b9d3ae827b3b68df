package noderequests

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// parked is a poll that waits. It has a connection and a timer: no goroutine, and none of the buffers of a request.
type parked struct {
	conn  net.Conn
	timer *time.Timer
}

// gone reports whether the agent closed the connection of a poll: it sends nothing else while it waits.
func (p *parked) gone() bool {
	conn := p.conn
	if over, ok := conn.(*tls.Conn); ok {
		conn = over.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	silent := false
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		silent = err == unix.EAGAIN
		return true
	})
	return err != nil || !silent
}

// answer answers a poll, and hands its connection on for the next request; nil closes it.
func (p *parked) answer(status int, body []byte, next *connections) error {
	response := http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Close: next == nil,
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}
	if status == http.StatusOK {
		response.Header.Set("Content-Type", "application/json")
	}
	var all bytes.Buffer
	err := response.Write(&all)
	if err == nil {
		err = p.conn.SetDeadline(time.Now().Add(answerTime))
	}
	if err == nil {
		_, err = p.conn.Write(all.Bytes())
	}
	if err == nil {
		err = p.conn.SetDeadline(time.Time{})
	}
	if err != nil || next == nil {
		_ = p.conn.Close()
		return err
	}
	next.take(p.conn)
	return nil
}

// connections is a net.Listener of the connections of polls that were answered.
type connections struct {
	of    net.Addr
	conns chan net.Conn
	done  chan struct{}
	close func()
}

// take hands on a connection.
func (c *connections) take(conn net.Conn) {
	select {
	case c.conns <- conn:
	case <-c.done:
		_ = conn.Close()
	}
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	select {
	case conn := <-c.conns:
		return conn, nil
	case <-c.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (c *connections) Close() error {
	c.close()
	return nil
}

// Addr implements net.Listener.
func (c *connections) Addr() net.Addr { return c.of }

// Connections returns a listener of the connections whose polls were answered. The server that serves polls serves it, too, or each poll takes a
// connection of its own. When it is closed, polls that wait end, and those that come are answered at once: with no request.
func (h *Hub) Connections(of net.Addr) net.Listener {
	c := &connections{of: of, conns: make(chan net.Conn), done: make(chan struct{})}
	c.close = sync.OnceFunc(func() {
		close(c.done)
		h.mu.Lock()
		h.next, h.ended = nil, true
		var all []*parked
		for _, n := range h.nodes {
			all = append(all, n.polls...)
			n.polls = nil
		}
		h.mu.Unlock()
		for _, p := range all {
			p.timer.Stop()
			_ = p.answer(http.StatusNoContent, nil, nil)
		}
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next, h.ended = c, false
	return c
}
