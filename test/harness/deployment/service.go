package deployment

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
)

// Service hands each connection to the next of its endpoints that takes it, and
// ends one that none takes.
type Service struct {
	listener net.Listener

	mu        sync.Mutex
	endpoints []string
	next      int
}

// Listen opens a Service at an address; port 0 means any.
func Listen(ctx context.Context, address string, endpoints ...string) (*Service, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	s := &Service{listener: l, endpoints: endpoints}
	go s.serve()
	return s, nil
}

// Address is where it listens, as host:port.
func (s *Service) Address() string { return s.listener.Addr().String() }

// Close takes no more connections.
func (s *Service) Close() error { return s.listener.Close() }

// Join has it find an endpoint, Leave has it find it no more.
func (s *Service) Join(endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoints = append(s.endpoints, endpoint)
}

// Leave is the opposite of Join.
func (s *Service) Leave(endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoints = slices.DeleteFunc(s.endpoints, func(e string) bool { return e == endpoint })
}

func (s *Service) serve() {
	for {
		from, err := s.listener.Accept()
		if err != nil {
			return
		}
		to, err := s.dial()
		if err != nil {
			_ = from.Close()
			continue
		}
		for a, b := range map[net.Conn]net.Conn{from: to, to: from} {
			go func() {
				_, _ = io.Copy(a, b)
				_ = a.Close()
				_ = b.Close()
			}()
		}
	}
}

// dial reaches the next endpoint that answers.
func (s *Service) dial() (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errors.New("there is no endpoint")
	for range s.endpoints {
		s.next++
		var to net.Conn
		if to, err = (&net.Dialer{}).DialContext(context.Background(), "tcp", s.endpoints[s.next%len(s.endpoints)]); err == nil {
			return to, nil
		}
	}
	return nil, err
}
