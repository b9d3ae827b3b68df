package mirror

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

// laneOptions are the bounds of one lane.
type laneOptions struct {
	// atOnce is how many tokens of the lane are reviewed at once.
	atOnce int64
	// burst is how many tokens one name may show before it is held to one a second.
	burst int
	// perSecond bounds the tokens of all names together; 0 means no bound, and
	// twice as many may come at once.
	perSecond float64
	// patience is how long a token waits for a place.
	patience time.Duration
}

// The bounds of every lane: how many names it counts, and after how long a token
// that got no place is to be shown again.
const (
	maxNames = 4096
	busyFor  = 2 * time.Second
)

// lane bounds the reviews of one kind of tokens, by their names and together.
type lane struct {
	options laneOptions
	now     func() time.Time
	places  *semaphore.Weighted
	all     *rate.Limiter

	mu sync.Mutex
	// names are the limiters of those that showed a token in the last minute, the
	// only time that one is not full again.
	names *cache.LRUExpireCache
}

func newLane(o laneOptions, now func() time.Time) *lane {
	all := rate.NewLimiter(rate.Inf, 0)
	if o.perSecond > 0 {
		all = rate.NewLimiter(rate.Limit(o.perSecond), int(2*o.perSecond))
	}
	return &lane{options: o, now: now, all: all, places: semaphore.NewWeighted(o.atOnce), names: cache.NewLRUExpireCacheWithClock(maxNames, cacheClock(now))}
}

// enter takes a place for a token of that name, and returns how to give it back;
// errBusy where there is none for now. A name that shows too many tokens takes
// nothing from the others.
func (l *lane) enter(ctx context.Context, name string) (leave func(), err error) {
	now := l.now()
	if !l.limiter(name).AllowN(now, 1) || !l.all.AllowN(now, 1) {
		return nil, errBusy
	}
	ctx, cancel := context.WithTimeout(ctx, l.options.patience)
	defer cancel()
	if err := l.places.Acquire(ctx, 1); err != nil {
		return nil, errBusy
	}
	return func() { l.places.Release(1) }, nil
}

// limiter is a name's own.
func (l *lane) limiter(name string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	own, ok := l.names.Get(name)
	if !ok {
		own = rate.NewLimiter(1, l.options.burst)
		l.names.Add(name, own, time.Minute)
	}
	return own.(*rate.Limiter)
}
