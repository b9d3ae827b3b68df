package mirror

import (
	"context"
	"sync"
)

// sentAtOnce is how many objects are on their way to one node at once: a node that
// reads slowly, or never, keeps few of those that may be out at all.
const sentAtOnce = 4

// shares has each node wait for its own objects.
type shares struct {
	mu sync.Mutex
	of map[string]*share
}

// share is one node's.
type share struct {
	// sent has one entry for each object on its way; asked are those and what waits.
	sent  chan struct{}
	asked int
}

// enter waits until one more may be on its way to a node, and returns what to call
// when it is there.
func (s *shares) enter(ctx context.Context, node string) (leave func(), err error) {
	own := s.own(node)
	select {
	case own.sent <- struct{}{}:
		return func() {
			<-own.sent
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
		own = &share{sent: make(chan struct{}, sentAtOnce)}
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
