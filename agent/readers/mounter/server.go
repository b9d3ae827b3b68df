package mounter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Options are what a mounter is started with.
type Options struct {
	// Pods is the kubelet's folder of pods. Mounts below it have to come to the node.
	Pods string
	// Scratch is an empty folder whose mounts no other process sees; made where it is not there.
	Scratch string
	// Pins gives volumes BPF file systems for pins. Without it, those that volumes have are emptied and unmounted.
	Pins bool
	// Log is where requests are logged that are not answered.
	Log *slog.Logger
}

// Server answers an agent.
type Server struct {
	log   *slog.Logger
	pods  pods
	turns turns
}

// connections bounds how many wait at a time.
const connections = 16

// New opens the folder of pods, and puts the pins of volumes in order: a mounter that a kill stopped within an update left a file system
// writable, and one that had pins left them. What fails for a volume is logged, and done with its next update: others do not wait for it.
func New(o Options) (*Server, error) {
	s := &Server{log: cmp.Or(o.Log, slog.New(slog.DiscardHandler))}
	var err error
	if s.pods, err = openPods(o.Pods, o.Scratch, o.Pins); err != nil {
		return nil, err
	}
	volumes, err := s.pods.mounted()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for _, v := range volumes {
		if err := s.pods.protect(v); err != nil {
			s.log.Error("put the pins of a volume in order", "volume", v.String(), "error", err)
		}
	}
	return s, nil
}

// Close closes the folder. What is mounted stays.
func (s *Server) Close() error { return s.pods.close() }

// Listen makes the mounter's socket, in a folder that only root may enter.
func Listen(socket string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(filepath.Dir(socket), 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Serve answers until the context ends.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	room := make(chan struct{}, connections)
	for {
		room <- struct{}{}
		c, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("wait for the agent: %w", err)
		}
		all.Go(func() {
			defer func() { <-room }()
			defer func() { _ = c.Close() }()
			if err := s.answer(c); err != nil {
				s.log.Warn("a request was not answered", "error", err)
			}
		})
	}
}

// answer answers one request.
func (s *Server) answer(c *net.UnixConn) error {
	if err := peer(c); err != nil {
		return err
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	var r request
	descriptors, err := receive(c, &r)
	defer func() { closeAll(descriptors) }()
	if err == nil {
		err = r.check(len(descriptors), s.pods.pins)
	}
	if err != nil {
		return errors.Join(err, send(c, reply{Error: "the mounter does not take the request: " + err.Error()}, nil))
	}
	for i, d := range descriptors {
		r.Pins[i].Map = d
	}
	got, folder, err := s.turn(c, r)
	if err != nil {
		return err
	}
	defer closeAll(folder)
	return send(c, got, folder)
}

// turn does what a request asks for, unless the agent does not wait for it any more: a later one may be done already. Requests for one
// volume take turns.
func (s *Server) turn(c *net.UnixConn, r request) (reply, []int, error) {
	defer s.turns.take(r.Volume)()
	if err := waits(c); err != nil {
		return reply{}, nil, err
	}
	got, folder := s.do(r)
	return got, folder, nil
}

// do does what a request asks for. The descriptor is the caller's.
func (s *Server) do(r request) (reply, []int) {
	folder := -1
	var err error
	switch r.Op {
	case opList:
		return s.list(r.Volume)
	case opMount, opUpdate:
		folder, err = s.mount(r)
	case opNarrow:
		err = s.pods.narrow(r.Volume, r.Pins)
	case opUnmount:
		err = s.pods.unmount(r.Volume)
	default:
		err = fmt.Errorf("the mounter does not know %q", r.Op)
	}
	switch {
	case errors.Is(err, ErrNotMounted):
		return reply{NotMounted: true}, nil
	case err != nil:
		return reply{Error: fmt.Sprintf("%s %s: %v", r.Op, r.Volume, err)}, nil
	case folder < 0:
		return reply{}, nil
	}
	return reply{}, []int{folder}
}

// mount mounts what is not mounted, makes the pins, and returns the folder.
func (s *Server) mount(r request) (int, error) {
	for _, p := range r.Pins {
		if err := isMap(p.Map); err != nil {
			return -1, fmt.Errorf("pin %s: %w", p.Name, err)
		}
	}
	if r.Op == opMount {
		if err := s.pods.mount(r.Volume, r.Group, r.Record); err != nil {
			return -1, err
		}
	}
	return s.pods.pin(r.Volume, r.Pins)
}

// isMap returns an error unless a descriptor is of a BPF map.
func isMap(descriptor int) error {
	is, err := os.Readlink(procPath(descriptor))
	if err == nil && is != "anon_inode:bpf-map" {
		err = fmt.Errorf("the descriptor is %s, not a map", is)
	}
	return err
}

// list lists the volumes after one.
func (s *Server) list(after Volume) (reply, []int) {
	volumes, err := s.pods.mounted()
	if err != nil {
		return reply{Error: fmt.Sprintf("list volumes: %v", err)}, nil
	}
	volumes = slices.DeleteFunc(volumes, func(v Volume) bool { return compare(v, after) <= 0 })
	var r reply
	for _, v := range volumes {
		if len(r.Volumes) == perList {
			r.More = true
			break
		}
		m, err := s.pods.look(v)
		switch {
		case errors.Is(err, ErrNotMounted):
		case err != nil:
			return reply{Error: fmt.Sprintf("look at %s: %v", v, err)}, nil
		default:
			r.Volumes = append(r.Volumes, m)
		}
	}
	return r, nil
}

// turns has the requests for a volume wait for one another.
type turns struct {
	mu    sync.Mutex
	taken map[Volume]chan struct{}
}

// take waits for the volume's turn. The function that it returns ends it.
func (t *turns) take(v Volume) (end func()) {
	done := make(chan struct{})
	for {
		t.mu.Lock()
		before := t.taken[v]
		if before == nil {
			if t.taken == nil {
				t.taken = map[Volume]chan struct{}{}
			}
			t.taken[v] = done
			t.mu.Unlock()
			break
		}
		t.mu.Unlock()
		<-before
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.taken, v)
		close(done)
	}
}

// compare orders volumes.
func compare(a, b Volume) int { return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Name, b.Name)) }
