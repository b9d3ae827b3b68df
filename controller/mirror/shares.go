package mirror

import (
	"context"
	"sync"
)

// atOnce is how many objects are on their way to one node at once, and how many are
// fetched for it: a node that reads slowly, or never, keeps few of those that may be
// out at all.
const atOnce = 4

// shares has each node wait for its own objects.
type shares struct {
	mu sync.Mutex
	of map[string]*share
}

// share is one node's.
type share struct {
	// taken has one entry for each object; asked are those and what waits.
	taken chan struct{}
	asked int
}

// enter waits until a node may have one more, and returns what to call when it has.
func (s *shares) enter(ctx context.Context, node string) (leave func(), err error) {
	own := s.own(node)
	select {
	case own.taken <- struct{}{}:
		return func() {
			<-own.taken
			s.forget(node, own)
		}, nil
	case <-ctx.Done():
		s.forget(node, own)
		return nil, ctx.Err()
	}
}

// own is a node's share, with one that asks more.
func (s *shares) own(node string) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.of[node]
	if own == nil {
		own = &share{taken: make(chan struct{}, atOnce)}
		if s.of == nil {
			s.of = map[string]*share{}
		}
		s.of[node] = own
	}
	own.asked++
	return own
}

// forget is one less that asks.
func (s *shares) forget(node string, own *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own.asked--; own.asked == 0 {
		delete(s.of, node)
	}
}
