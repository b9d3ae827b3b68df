package mirror

import (
	"context"
	"sync"
)

// outAtOnce is how many objects may be on their way at once. Each has at most the
// bytes that an inspection reads, 16 MiB.
const outAtOnce = 16

// shelf lends the objects of a cache. However many nodes one is being sent to, it
// is read once and stands in memory once; and few are out at the same time, the
// others wait.
type shelf struct {
	once sync.Once
	// slots has one entry for each object that is out.
	slots chan struct{}

	mu  sync.Mutex
	out map[string]*lent
}

// lent is an object, or why it cannot be had, from when ready is closed.
type lent struct {
	ready  chan struct{}
	object []byte
	err    error
	// holders are those who have it or wait for it; abandon tells who reads it that
	// there are none any more, and done that it was read.
	holders int
	abandon context.CancelFunc
	done    bool
}

// lend returns an object, and how to give it back, which is to be called where
// there is no error. One caller that goes away does not end the reading of the
// others.
func (s *shelf) lend(ctx context.Context, digest string, read func(context.Context) ([]byte, error)) ([]byte, func(), error) {
	l := s.hold(ctx, digest, read)
	giveBack := func() { s.giveBack(digest, l) }
	select {
	case <-ctx.Done():
		giveBack()
		return nil, nil, ctx.Err()
	case <-l.ready:
	}
	if l.err != nil {
		giveBack()
		return nil, nil, l.err
	}
	return l.object, giveBack, nil
}

// hold is what is lent of that digest, with one holder more.
func (s *shelf) hold(ctx context.Context, digest string, read func(context.Context) ([]byte, error)) *lent {
	s.once.Do(func() { s.slots, s.out = make(chan struct{}, outAtOnce), map[string]*lent{} })
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.out[digest]
	if !ok {
		l = &lent{ready: make(chan struct{})}
		ctx, l.abandon = context.WithCancel(context.WithoutCancel(ctx))
		s.out[digest] = l
		go s.bring(ctx, digest, l, read)
	}
	l.holders++
	return l
}

// bring has an object read for those who hold it. What could not be had is out no
// more, and read anew for who asks next.
func (s *shelf) bring(ctx context.Context, digest string, l *lent, read func(context.Context) ([]byte, error)) {
	object, err := s.take(ctx, read)
	s.mu.Lock()
	defer s.mu.Unlock()
	l.object, l.err, l.done = object, err, true
	close(l.ready)
	if err != nil {
		s.drop(digest, l)
	}
	s.free(l)
}

// take waits for a slot, and keeps it unless there is an error.
func (s *shelf) take(ctx context.Context, read func(context.Context) ([]byte, error)) ([]byte, error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	object, err := read(ctx)
	if err != nil {
		<-s.slots
	}
	return object, err
}

// giveBack is one holder less; with the last the object leaves memory.
func (s *shelf) giveBack(digest string, l *lent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.holders--; l.holders > 0 {
		return
	}
	l.abandon()
	s.drop(digest, l)
	s.free(l)
}

// drop has what was lent be out no more.
func (s *shelf) drop(digest string, l *lent) {
	if s.out[digest] == l {
		delete(s.out, digest)
	}
}

// free gives the slot back of what was read and nobody holds.
func (s *shelf) free(l *lent) {
	if l.done && l.err == nil && l.holders == 0 {
		<-s.slots
	}
}
