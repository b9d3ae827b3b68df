// Package limit keeps one of many from taking all there is: each name has a share
// of its own, and waits for nothing but that.
//
// It counts, whatever is counted, and remembers a name while somebody has some of
// its share or waits for it. It does not bound how much all names take together,
// unless they ask for a share under one name.
package limit

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// PerName has a limit for each of any number of names. The zero value is ready.
type PerName struct {
	mu sync.Mutex
	of map[string]*one
}

// one is the share of one name.
type one struct {
	room *semaphore.Weighted
	// users are those that have some of it or wait for it.
	users int
}

// Acquire waits until so much of a name's share is free, and no longer than the context,
// whose error it returns. limit is the size of the share, at least 1, and the same for a
// name each time; a weight above it acquires all of it. release gives back what was
// acquired, however often it is called.
func (s *PerName) Acquire(ctx context.Context, name string, weight, limit int64) (release func(), err error) {
	limit = max(limit, 1)
	weight = min(weight, limit)
	own := s.enter(name, limit)
	if err := own.room.Acquire(ctx, weight); err != nil {
		s.leave(name, own)
		return nil, err
	}
	return sync.OnceFunc(func() {
		own.room.Release(weight)
		s.leave(name, own)
	}), nil
}

// Users is by name how many have some of its share or wait for it. A name that
// nobody uses is not in it.
func (s *PerName) Users() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	users := map[string]int{}
	for name, own := range s.of {
		users[name] = own.users
	}
	return users
}

// enter is a name's share, with one user more.
func (s *PerName) enter(name string, most int64) *one {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.of[name]
	if own == nil {
		own = &one{room: semaphore.NewWeighted(most)}
		if s.of == nil {
			s.of = map[string]*one{}
		}
		s.of[name] = own
	}
	own.users++
	return own
}

// leave is one user less; the last has the name forgotten.
func (s *PerName) leave(name string, own *one) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(s.of, name)
	}
}
