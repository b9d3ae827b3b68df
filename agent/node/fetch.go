package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/skep-dev/skep/intent"
)

// fetchGrace is how long a pass waits for an object. What takes longer goes on
// beside it, so that a registry that hangs keeps no link from being healed.
const fetchGrace = 250 * time.Millisecond

// errFetching: the object is on its way.
var errFetching = errors.New("the object is being fetched")

// fetches are the objects on their way, by digest.
type fetches struct {
	mu     sync.Mutex
	flying map[string]*flight
	wait   sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc
}

// flight is one fetch; err may be read after done.
type flight struct {
	done chan struct{}
	err  error
}

func newFetches() *fetches {
	ctx, cancel := context.WithCancel(context.Background())
	return &fetches{flying: map[string]*flight{}, ctx: ctx, cancel: cancel}
}

// stop ends what is on its way.
func (f *fetches) stop() {
	f.cancel()
	f.wait.Wait()
}

// object takes the bytes from the cache, or has them fetched and kept. It fails
// with errFetching while they are on their way.
func (p *pass) object(payload intent.Payload) ([]byte, error) {
	digest := payload.ObjectDigest
	if body := p.cache.object(digest); body != nil {
		return body, nil
	}
	f := p.fetch(digest)
	grace := time.NewTimer(fetchGrace)
	defer grace.Stop()
	select {
	case <-f.done:
	case <-grace.C:
		return nil, errFetching
	case <-p.ctx.Done():
		return nil, errFetching
	}
	p.fetches.mu.Lock()
	delete(p.fetches.flying, digest)
	p.fetches.mu.Unlock()
	if f.err != nil {
		return nil, fmt.Errorf("fetch object of %s: %w", payload.Application, f.err)
	}
	body := p.cache.object(digest)
	if body == nil {
		return nil, fmt.Errorf("fetch object of %s: it is not in the cache where it was kept; is the disk full?", payload.Application)
	}
	return body, nil
}

// fetch begins a fetch, or joins the one that is on its way.
func (a *Agent) fetch(digest string) *flight {
	a.fetches.mu.Lock()
	defer a.fetches.mu.Unlock()
	if f := a.fetches.flying[digest]; f != nil {
		return f
	}
	f := &flight{done: make(chan struct{})}
	a.fetches.flying[digest] = f
	a.fetches.wait.Go(func() {
		defer a.poke()
		defer close(f.done)
		f.err = a.fetchAndKeep(digest)
	})
	return f
}

func (a *Agent) fetchAndKeep(digest string) error {
	ctx, cancel := context.WithTimeout(a.fetches.ctx, a.opts.FetchTimeout)
	defer cancel()
	body, err := a.opts.Fetch(ctx, digest)
	if err != nil {
		return err
	}
	if err := checkDigest(digest, body); err != nil {
		return err
	}
	return a.cache.putObject(digest, body)
}
