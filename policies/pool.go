package policies

import (
	"context"

	"golang.org/x/sync/semaphore"

	"github.com/skep-dev/skep/limit"
)

// pool is the workers of one use, and how many of them work at once.
type pool struct {
	// places bounds how many work at once. A worker takes weight of them, and may be
	// of several pools' places.
	places *semaphore.Weighted
	weight int64
	// share is how many workers one namespace has at once.
	share      int64
	namespaces limit.PerName
	// fresh has every task done by a worker of its own.
	fresh bool
	// beside is the pool whose idle workers leave their memory to one that starts; nil
	// where there is none.
	beside *pool

	// idle are the workers that wait for work, the one that worked last at the end.
	// The Engine guards them.
	idle []*worker
}

// newPool returns a pool with places of its own.
func newPool(places, share int) *pool {
	return &pool{places: semaphore.NewWeighted(int64(places)), weight: 1, share: int64(share)}
}

// enter waits for a place, no longer than ctx: first until the namespace has less than
// its share. leave gives the place back.
func (p *pool) enter(ctx context.Context, namespace string) (leave func(), err error) {
	give, err := p.namespaces.Acquire(ctx, namespace, 1, p.share)
	if err != nil {
		return nil, err
	}
	if err := p.places.Acquire(ctx, p.weight); err != nil {
		give()
		return nil, err
	}
	return func() { p.places.Release(p.weight); give() }, nil
}
