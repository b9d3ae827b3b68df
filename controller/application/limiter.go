package application

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// An evaluation that takes slowAfter waits for a registry. slowAtOnce of one
// namespace may; beyond them one that would is given up after hasty, which is
// long for what is known, and one of what does not run yet is not begun.
const (
	slowAfter  = 2 * time.Second
	slowAtOnce = 4
	hasty      = 250 * time.Millisecond
)

// errQueued says why an evaluation was given up.
var errQueued = errors.New("it takes long, and so many others of its namespace do that it has to wait; trying again")

// limiter keeps one namespace, whose registries hang, from holding up the others
// and what a revocation has to reach: who may apply may name any host.
type limiter struct {
	mu   sync.Mutex
	slow map[string]int
}

// full reports whether as many evaluations of a namespace wait as may.
func (l *limiter) full(namespace string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slow[namespace] >= slowAtOnce
}

// retryAfter is when to ask again whether the limiter of a namespace is full.
func retryAfter() time.Duration {
	return 5*time.Second + rand.N(10*time.Second) //nolint:gosec // jitter guards no secret
}

// enter bounds one evaluation; leave is to be called after it.
func (l *limiter) enter(ctx context.Context, namespace string) (bounded context.Context, leave func()) {
	bounded, cancel := context.WithCancelCause(ctx)
	after, holds, left := slowAfter, false, false
	if l.full(namespace) {
		after = hasty
	}
	timer := time.AfterFunc(after, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case left:
		case l.slow[namespace] >= slowAtOnce:
			cancel(errQueued)
		default:
			if l.slow == nil {
				l.slow = map[string]int{}
			}
			l.slow[namespace]++
			holds = true
		}
	})
	return bounded, func() {
		timer.Stop()
		l.mu.Lock()
		defer l.mu.Unlock()
		left = true
		if holds {
			l.slow[namespace]--
		}
		if l.slow[namespace] == 0 {
			delete(l.slow, namespace)
		}
		cancel(nil)
	}
}
