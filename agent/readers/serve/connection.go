package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/skepmap/protocol"
	"github.com/skep-dev/skep/skepmap/raw"
)

// connection is that of a reader.
type connection struct {
	folder *Folder
	conn   *net.UnixConn
	groups []uint32
	ctx    context.Context
	stop   context.CancelFunc
	// begun is when the first bytes of a request came, and zero between two.
	begun time.Time
	// waits is whether the last bytes were fewer than there was room for.
	waits bool
	// consumes is whether the connection has the descriptor of a ring buffer.
	consumes bool
	scan     *scan

	// used is what was asked for of each map, and belongs to folder.mu.
	used map[string]rights
}

// scan is one that began.
type scan struct {
	of    *entry
	batch *raw.Scan
}

// end ends the connection, also while it waits. It waits for nothing: a reader can pass a descriptor whose end takes the kernel long, which is
// ended by who reads the message, and for whom Close waits.
func (c *connection) end() {
	c.stop()
	go func() { _ = c.conn.Close() }()
}

// keeps reports whether all that the connection used is granted still. The caller holds folder.mu.
func (c *connection) keeps(before, now map[string]*entry) bool {
	for name, used := range c.used {
		was, is := before[name], now[name]
		if was == nil || is == nil || !is.sameMap(was) || !is.allows(c.groups).covers(used) {
			return false
		}
	}
	return true
}

// Read reads from the reader within the bounds of time.
func (c *connection) Read(p []byte) (int, error) {
	var deadline time.Time
	switch {
	case !c.begun.IsZero():
		if err := c.gather(); err != nil {
			return 0, err
		}
		deadline = c.begun.Add(c.folder.server.o.Request)
	case !c.consumes:
		deadline = time.Now().Add(c.folder.server.o.Idle)
	}
	if err := c.conn.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	n, err := c.conn.Read(p)
	c.waits = n < len(p)
	if c.begun.IsZero() {
		c.begun = time.Now()
	}
	return n, err
}

// between is the time between the pieces of a request that comes in small ones: what a reader sends byte by byte costs the agent more than
// the reader.
const between = 20 * time.Millisecond

// gather waits for more of a request than a few bytes.
func (c *connection) gather() error {
	if !c.waits {
		return nil
	}
	select {
	case <-c.ctx.Done():
		return c.ctx.Err()
	case <-time.After(between):
		return nil
	}
}

// serve answers requests one after the other.
func (c *connection) serve() {
	lines := protocol.Lines(c, protocol.MaxRequest)
	for lines.Scan() {
		answer, fd, err := c.answer(lines.Bytes())
		if err != nil {
			return
		}
		// Others wait for none of it: a reader that takes no answers holds nothing here.
		if err := c.send(answer, fd); err != nil {
			return
		}
		c.begun = time.Time{}
	}
	if lines.Err() != nil && c.ctx.Err() == nil {
		_ = c.send(lineOf(protocol.Response{Code: protocol.Invalid, Error: lines.Err().Error()}), -1)
	}
}

// send sends an answer, with a descriptor where fd is one, which it closes.
func (c *connection) send(line []byte, fd int) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.folder.server.o.Request)); err != nil {
		return err
	}
	if fd >= 0 {
		defer func() { _ = unix.Close(fd) }()
		n, _, err := c.conn.WriteMsgUnix(line, unix.UnixRights(fd), nil)
		if err != nil {
			return err
		}
		line = line[n:]
	}
	_, err := c.conn.Write(line)
	return err
}

func lineOf(r protocol.Response) []byte {
	// Strings and bytes always have a form in JSON.
	line, _ := protocol.Line(r)
	return line
}

// answer handles a request at the pace of the folder, of its owner and of the agent.
func (c *connection) answer(line []byte) (answer []byte, fd int, err error) {
	fd = -1
	_, err = inTurn(c.ctx, c.folder.paces, func() time.Duration {
		return measured(func() {
			var response protocol.Response
			response, fd = c.respond(line)
			answer = lineOf(response)
		})
	})
	return answer, fd, err
}

// respond does what a request asks for.
func (c *connection) respond(line []byte) (protocol.Response, int) {
	r, err := protocol.ParseRequest(line)
	if err != nil {
		return protocol.Response{Code: protocol.Invalid, Error: err.Error()}, -1
	}
	fd := -1
	var response protocol.Response
	e, err := c.find(r)
	if err == nil {
		err = e.use(func() (err error) {
			if r.Op == protocol.Consume {
				fd, err = c.consume(e)
				return err
			}
			response, err = c.do(e, r)
			return err
		})
	}
	if err == nil {
		return response, fd
	}
	return protocol.Response{Code: codeOf(err), Error: fmt.Sprintf("map %.128s: %v", r.Map, plain.Error(err))}, -1
}

// coded is an error with its code.
type coded struct {
	code protocol.Code
	text string
}

func (e *coded) Error() string { return e.text }

func reject(code protocol.Code, format string, args ...any) error {
	return &coded{code, fmt.Sprintf(format, args...)}
}

func codeOf(err error) protocol.Code {
	var known *coded
	switch {
	case errors.As(err, &known):
		return known.code
	case errors.Is(err, errWithdrawn):
		return protocol.Denied
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return protocol.NotFound
	case errors.Is(err, ebpf.ErrKeyExist):
		return protocol.Exists
	}
	return protocol.Failed
}

// find finds the map of a request where it is granted for that, and keeps in mind that it was used.
func (c *connection) find(r protocol.Request) (*entry, error) {
	wanted := map[protocol.Op]rights{
		protocol.Get: {read: true}, protocol.Scan: {read: true}, protocol.Next: {read: true},
		protocol.Put: {write: true}, protocol.Delete: {write: true}, protocol.Consume: {consume: true},
	}[r.Op]
	c.folder.mu.Lock()
	defer c.folder.mu.Unlock()
	e := c.folder.maps[r.Map]
	if e == nil {
		return nil, errWithdrawn
	}
	switch allowed := e.allows(c.groups); {
	case allowed == rights{}:
		return nil, errWithdrawn
	case !allowed.covers(wanted):
		return nil, reject(protocol.Denied, "it is granted to this reader, and not for %s", r.Op)
	case r.Generation != 0 && r.Generation != e.Info.Generation:
		return nil, reject(protocol.Changed, "it has the generation %d, and not %d: read the listing again", e.Info.Generation, r.Generation)
	}
	c.used[r.Map] = c.used[r.Map].with(wanted)
	return e, nil
}

// do answers requests for entries.
func (c *connection) do(e *entry, r protocol.Request) (protocol.Response, error) {
	if e.none != nil {
		return protocol.Response{}, reject(protocol.Invalid, "%v", e.none)
	}
	keySize, valueSize := int(e.Map.KeySize()), e.raw.ValueBytes()
	if keySize+valueSize > protocol.MaxEntry {
		return protocol.Response{}, reject(protocol.Invalid, "an entry has %d bytes, and the socket takes %d: open the pin, which a pod has with csi.pins",
			keySize+valueSize, protocol.MaxEntry)
	}
	switch r.Op {
	case protocol.Scan:
		c.scan = &scan{of: e, batch: e.raw.Scan(protocol.Batch)}
		return c.next(e)
	case protocol.Next:
		return c.next(e)
	}
	if len(r.Key) != keySize {
		return protocol.Response{}, reject(protocol.Invalid, "the key has %d bytes; the map has keys of %d", len(r.Key), keySize)
	}
	switch r.Op {
	case protocol.Put:
		if len(r.Value) != valueSize {
			return protocol.Response{}, reject(protocol.Invalid, "the value has %d bytes; the map has values of %d", len(r.Value), valueSize)
		}
		return protocol.Response{}, e.raw.Put(r.Key, r.Value, ebpf.MapUpdateFlags(r.Flags))
	case protocol.Delete:
		return protocol.Response{}, e.raw.Delete(r.Key)
	}
	value, err := e.raw.Get(r.Key)
	return protocol.Response{Value: value}, err
}

// next answers the next entries of the connection's scan.
func (c *connection) next(e *entry) (protocol.Response, error) {
	if c.scan == nil || c.scan.of != e {
		return protocol.Response{}, reject(protocol.Invalid, "no scan of it began on this connection; ask for scan first")
	}
	keys, values, err := c.scan.batch.Next()
	if err != nil || len(keys) == 0 {
		c.scan = nil
	}
	return protocol.Response{Keys: keys, Values: values, End: len(keys) == 0}, err
}

// consume gives a ring buffer's descriptor to the reader, if no other has it.
func (c *connection) consume(e *entry) (int, error) {
	if e.Map.Type() != ebpf.RingBuf {
		return -1, reject(protocol.Invalid, "it is a map of the type %s; only a RingBuf can be consumed", e.Map.Type())
	}
	if err := c.folder.server.checkHeld(c.folder.owner); err != nil {
		return -1, err
	}
	if !c.folder.server.consume(e.Map.ID, e.Map.MaxEntries(), c) {
		return -1, reject(protocol.Consumed, "another reader consumes it; one at a time may")
	}
	c.consumes = true
	return unix.FcntlInt(uintptr(e.Map.FD()), unix.F_DUPFD_CLOEXEC, 0)
}
