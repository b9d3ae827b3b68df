package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/skep-dev/skep/intent"
)

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

// landed forgets a fetch that ended: what it fetched may leave the cache again.
func (f *fetches) landed(digest string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.flying[digest]; one != nil {
		select {
		case <-one.done:
			delete(f.flying, digest)
		default:
		}
	}
}

// available is nil where the cache has an intent's object, else has it fetched and
// kept. It fails with errFetching while the object is on its way.
func (p *pass) available(payload intent.Payload) error {
	digest := payload.ObjectDigest
	if p.cache.has(digest) {
		p.fetches.landed(digest)
		return nil
	}
	f := p.fetch(digest)
	select {
	case <-f.done:
	default:
		p.fetching = true
		return errFetching
	}
	p.fetches.landed(digest)
	if f.err != nil {
		return fmt.Errorf("fetch object of %s: %w", payload.Application, f.err)
	}
	if !p.cache.has(digest) {
		return fmt.Errorf("fetch object of %s: it is not in the cache where it was kept; is the disk full?", payload.Application)
	}
	return nil
}

// object reads an intent's object, or has it fetched, as available does.
func (p *pass) object(payload intent.Payload) ([]byte, error) {
	if err := p.available(payload); err != nil {
		return nil, err
	}
	body, err := p.cache.object(payload.ObjectDigest)
	if !errors.Is(err, errFetching) {
		return body, err
	}
	// It was torn, and may have been fetched again by now.
	if err := p.available(payload); err != nil {
		return nil, err
	}
	return p.cache.object(payload.ObjectDigest)
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
		defer a.wakeUp()
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
