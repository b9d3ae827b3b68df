package skepmap

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/skepmap/protocol"
)

// patience bounds one request: the agent answers a reader that asks for much more slowly.
const patience = 30 * time.Second

// socket are the entries of a map by the socket of its folder.
type socket struct {
	path, name string
	generation uint64

	mu   sync.Mutex
	conn *protocol.Conn
}

// ask asks over the one connection, which it makes anew once it is broken: the agent ends those that
// idle, and all when it starts again.
func (s *socket) ask(r protocol.Request) (protocol.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	isNew := s.conn == nil
	for {
		if s.conn == nil {
			conn, err := protocol.Dial(ctx, s.path)
			if err != nil {
				return protocol.Response{}, err
			}
			s.conn = conn
		}
		answer, err := s.do(ctx, s.conn, r)
		if answered := new(protocol.Error); err == nil || errors.As(err, &answered) {
			return answer, err
		}
		_ = s.conn.Close()
		if s.conn = nil; isNew || ctx.Err() != nil {
			return answer, err
		}
		isNew = true
	}
}

// do names the map in a request and sends it.
func (s *socket) do(ctx context.Context, conn *protocol.Conn, r protocol.Request) (protocol.Response, error) {
	r.Map, r.Generation = s.name, s.generation
	return conn.Do(ctx, r)
}

func (s *socket) get(key []byte) ([]byte, error) {
	r, err := s.ask(protocol.Request{Op: protocol.Get, Key: key})
	return r.Value, err
}

func (s *socket) put(key, value []byte, flags ebpf.MapUpdateFlags) error {
	_, err := s.ask(protocol.Request{Op: protocol.Put, Key: key, Value: value, Flags: uint64(flags)})
	return err
}

func (s *socket) del(key []byte) error {
	_, err := s.ask(protocol.Request{Op: protocol.Delete, Key: key})
	return err
}

func (s *socket) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	s.conn = nil
	return err
}

// ring asks for the descriptor of a ring buffer, over a connection that counts as its consumer.
func (s *socket) ring(ctx context.Context) (int, *protocol.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := protocol.Dial(ctx, s.path)
	if err != nil {
		return -1, nil, err
	}
	if _, err := s.do(ctx, conn, protocol.Request{Op: protocol.Consume}); err != nil {
		_ = conn.Close()
		return -1, nil, err
	}
	fd := conn.Descriptor()
	if fd < 0 {
		_ = conn.Close()
		return -1, nil, errors.New("the agent sent no descriptor with its answer")
	}
	return fd, conn, nil
}

// scan has a connection of its own: it has one scan at a time.
func (s *socket) scan() batches { return &socketScan{of: s} }

type socketScan struct {
	of   *socket
	conn *protocol.Conn
	end  bool
}

func (s *socketScan) next() (keys, values []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	op := protocol.Next
	if s.conn == nil {
		if s.conn, err = protocol.Dial(ctx, s.of.path); err != nil {
			return nil, nil, err
		}
		op = protocol.Scan
	}
	for !s.end && len(keys) == 0 {
		r, err := s.of.do(ctx, s.conn, protocol.Request{Op: op})
		if err != nil {
			return nil, nil, err
		}
		keys, values, s.end, op = r.Keys, r.Values, r.End, protocol.Next
	}
	return keys, values, nil
}

func (s *socketScan) close() error {
	if s.conn == nil {
		return nil
	}
	return s.conn.Close()
}
