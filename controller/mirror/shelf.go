package mirror

import (
	"context"
	"errors"
	"sync"

	"github.com/skep-dev/skep/bytecode/image"
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

// source is where a shelf has an object from: read reads it, and where that is
// image.ErrNotFound, fill brings it there first.
type source struct {
	read func(context.Context) ([]byte, error)
	fill func(context.Context) error
}

// lend returns an object, and how to give it back, which is to be called where
// there is no error. One caller that goes away does not end the reading of the
// others.
func (s *shelf) lend(ctx context.Context, digest string, from source) ([]byte, func(), error) {
	l := s.hold(ctx, digest, from)
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
func (s *shelf) hold(ctx context.Context, digest string, from source) *lent {
	s.once.Do(func() { s.slots, s.out = make(chan struct{}, outAtOnce), map[string]*lent{} })
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.out[digest]
	if !ok {
		l = &lent{ready: make(chan struct{})}
		ctx, l.abandon = context.WithCancel(context.WithoutCancel(ctx))
		s.out[digest] = l
		go s.bring(ctx, l, from)
	}
	l.holders++
	return l
}

// bring has an object read for those who hold it.
func (s *shelf) bring(ctx context.Context, l *lent, from source) {
	object, err := s.take(ctx, from)
	s.mu.Lock()
	defer s.mu.Unlock()
	l.object, l.err, l.done = object, err, true
	close(l.ready)
	s.free(l)
}

// take has an object read. It waits for a slot to read, and for none to fill: a
// registry that hangs keeps nobody from what is there. A fill goes on though
// nobody waits for it any more, since they will ask again.
func (s *shelf) take(ctx context.Context, from source) ([]byte, error) {
	object, err := s.read(ctx, from)
	if !errors.Is(err, image.ErrNotFound) {
		return object, err
	}
	if err := from.fill(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	return s.read(ctx, from)
}

// read takes a slot, and keeps it unless there is an error.
func (s *shelf) read(ctx context.Context, from source) ([]byte, error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	object, err := from.read(ctx)
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
	delete(s.out, digest)
	s.free(l)
}

// free gives the slot back of what was read and nobody holds.
func (s *shelf) free(l *lent) {
	if l.done && l.err == nil && l.holders == 0 {
		<-s.slots
	}
}
