package skepmap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/skepmap/protocol"
)

// Consume takes the records of a ring buffer that is granted for Consume. The agent gives its
// descriptor to one reader at a time, and answers protocol.Consumed to others (a *protocol.Error);
// by its pin, readers have to see to that themselves.
func (m *Map) Consume() (*Records, error) {
	var r *Records
	err := m.with("consume", func(e entries) error {
		if kind, _ := m.info.MapType(); kind != ebpf.RingBuf {
			return fmt.Errorf("it is a map of the type %s; only a RingBuf has records", m.info.Type)
		}
		ctx, cancel := context.WithCancel(context.Background())
		fd, conn, err := e.ring(ctx)
		if err != nil {
			cancel()
			return err
		}
		var ended chan struct{}
		r, err = newRecords(fd, m.info.MaxEntries, func() {
			cancel()
			if ended != nil {
				<-ended
			}
			m.recordsMu.Lock()
			delete(m.records, r)
			m.recordsMu.Unlock()
		})
		if err != nil {
			cancel()
			return errors.Join(err, closeConn(conn))
		}
		m.recordsMu.Lock()
		m.records[r] = struct{}{}
		m.recordsMu.Unlock()
		if s, bySocket := e.(*socket); bySocket {
			ended = make(chan struct{})
			go func() {
				defer close(ended)
				s.hold(ctx, conn, r)
			}()
		}
		return nil
	})
	return r, err
}

func closeConn(conn *protocol.Conn) error {
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// hold keeps the place of the one consumer with the agent: it asks for it again after the agent
// started anew, and ends the reader where the agent does not give it any more.
func (s *socket) hold(ctx context.Context, conn *protocol.Conn, r *Records) {
	for {
		err := conn.Ended(ctx)
		_ = conn.Close()
		for ctx.Err() == nil {
			var fd int
			if fd, conn, err = s.ring(ctx); err == nil {
				_ = unix.Close(fd)
				break
			}
			if answer := new(protocol.Error); errors.As(err, &answer) && answer.Code != protocol.Busy {
				go func() { _ = r.end(holdError(answer)) }()
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(again):
			}
		}
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return
		}
	}
}

// holdError is why a reader lost its place.
func holdError(answer *protocol.Error) error {
	switch answer.Code {
	case protocol.Denied:
		return ErrWithdrawn
	case protocol.Changed:
		return ErrReplaced
	}
	return answer
}
