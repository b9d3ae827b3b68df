package registry

import (
	"context"
	"errors"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// maxRepositories is how many repositories one Puller is asked about: it keeps
// what it learned of each, and whoever runs a registry names as many as they
// like.
const maxRepositories = 256

// pullers hands out the Puller that keeps pings and tokens, and a new one now and
// then.
type pullers struct {
	options []remote.Option

	mu    sync.Mutex
	now   *remote.Puller
	asked map[string]bool
}

func newPullers(options []remote.Option) (*pullers, error) {
	first, err := remote.NewPuller(options...)
	return &pullers{options: options, now: first, asked: map[string]bool{}}, err
}

// of is the Puller to ask about a repository.
func (p *pullers) of(repo name.Repository) (*remote.Puller, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked[repo.Name()] && len(p.asked) >= maxRepositories {
		next, err := remote.NewPuller(p.options...)
		if err != nil {
			return nil, err
		}
		p.now, p.asked = next, map[string]bool{}
	}
	p.asked[repo.Name()] = true
	return p.now, nil
}

// within does what may wait for somebody else's request, as a Puller waits for
// the first ping of a repository whoever made it, for no longer than the context,
// and once more where the other's time was up first. Under CacheOnly nothing is
// done.
func within[T any](ctx context.Context, do func() (T, error)) (T, error) {
	if err := mayAsk(ctx); err != nil {
		var none T
		return none, err
	}
	value, err := beside(ctx, do)
	if ctx.Err() == nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return beside(ctx, do)
	}
	return value, err
}

// beside leaves behind what is not done when the context ends.
func beside[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	came := make(chan answer, 1)
	go func() {
		value, err := do()
		came <- answer{value, err}
	}()
	select {
	case a := <-came:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
