package protocol

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a reader's connection. It is for one goroutine at a time.
type Conn struct {
	conn  *net.UnixConn
	lines *bufio.Scanner
	// passed is the descriptor that came last, and -1 for none.
	passed int
}

// Dial connects to the socket of a readers' folder.
func Dial(ctx context.Context, path string) (*Conn, error) {
	short, done, err := Short(path)
	if err != nil {
		return nil, err
	}
	defer done()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", short)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, errors.Unwrap(err))
	}
	return NewConn(conn.(*net.UnixConn)), nil
}

// NewConn takes a connection over.
func NewConn(conn *net.UnixConn) *Conn {
	c := &Conn{conn: conn, passed: -1}
	c.lines = Lines(c, MaxResponse)
	return c
}

// Short is a name of the socket that fits its address, which has 107 characters: that of the folder
// is its descriptor's in /proc until done is called.
func Short(path string) (short string, done func(), err error) {
	if len(path) < len(unix.RawSockaddrUnix{}.Path) {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), filepath.Base(path)), func() { _ = dir.Close() }, nil
}

// Close ends the connection.
func (c *Conn) Close() error {
	c.keep(-1)
	return c.conn.Close()
}

// keep keeps a descriptor, and closes that before.
func (c *Conn) keep(fd int) {
	if c.passed >= 0 {
		_ = unix.Close(c.passed)
	}
	c.passed = fd
}

// Read reads from the connection, and keeps the descriptor that comes with it. Lines calls it.
func (c *Conn) Read(p []byte) (int, error) {
	control := make([]byte, unix.CmsgSpace(4))
	n, nc, _, _, err := c.conn.ReadMsgUnix(p, control)
	if n = max(n, 0); errors.Is(err, io.EOF) {
		err = io.EOF
	}
	messages, parseErr := unix.ParseSocketControlMessage(control[:nc])
	if parseErr != nil {
		return n, errors.Join(err, parseErr)
	}
	for _, m := range messages {
		fds, rightsErr := unix.ParseUnixRights(&m)
		if rightsErr != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			c.keep(fd)
		}
	}
	return n, err
}

// Do sends a request and waits for the answer. An answer with a code is an *Error; after any other
// error the connection is of no more use.
func (c *Conn) Do(ctx context.Context, r Request) (Response, error) {
	line, err := Line(r)
	if err != nil {
		return Response{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	response, err := c.do(line)
	if !stop() && err != nil {
		return response, context.Cause(ctx)
	}
	if err != nil {
		return response, fmt.Errorf("ask the agent for map %s: %w", r.Map, err)
	}
	return response, response.Err()
}

func (c *Conn) do(line []byte) (r Response, err error) {
	if _, err := c.conn.Write(line); err != nil {
		// What the agent sent before it ended the connection says why.
		if !c.lines.Scan() || json.Unmarshal(c.lines.Bytes(), &r) != nil || r.Code == "" {
			return r, err
		}
		return r, nil
	}
	if !c.lines.Scan() {
		if err := c.lines.Err(); err != nil {
			return r, err
		}
		return r, io.ErrUnexpectedEOF
	}
	return r, json.Unmarshal(c.lines.Bytes(), &r)
}

// Descriptor returns the descriptor that came with the last answers and leaves it to the caller to
// close; it is -1 where none came.
func (c *Conn) Descriptor() int {
	fd := c.passed
	c.passed = -1
	return fd
}

// Ended waits until the agent ends the connection, or ctx ends. Nothing else may be asked then.
func (c *Conn) Ended(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for c.lines.Scan() {
	}
	return ctx.Err()
}
