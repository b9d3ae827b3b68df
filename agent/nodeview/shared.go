package nodeview

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// shared reads a value for all who ask for it: one read at a time, whose result is answered again while it is fresh, an error too. The read
// lasts longer than the context of a caller that gives up.
type shared[T any] struct {
	fresh  time.Duration
	read   func(context.Context) (T, error)
	flight singleflight.Group

	mu    sync.Mutex
	value T
	err   error
	ended time.Time
}

func share[T any](fresh time.Duration, read func(context.Context) (T, error)) *shared[T] {
	return &shared[T]{fresh: fresh, read: read}
}

// get returns the value; with an error, the last one that was read, or none.
func (s *shared[T]) get(ctx context.Context) (T, error) {
	if value, err, ok := s.known(); ok {
		return value, err
	}
	done := s.flight.DoChan("", func() (any, error) {
		if _, _, ok := s.known(); ok {
			return nil, nil
		}
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), readWithin)
		defer cancel()
		value, err := s.read(within)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err, s.ended = err, time.Now(); err == nil {
			s.value = value
		}
		return nil, nil
	})
	var err error
	select {
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-done:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = s.err
	}
	return s.value, err
}

// known returns what was read, while it is fresh.
func (s *shared[T]) known() (value T, err error, ok bool) { //nolint:revive // ok is of the error, too.
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value, s.err, !s.ended.IsZero() && time.Since(s.ended) < s.fresh
}
