package nodemode

import (
	"context"
	"errors"
	"time"

	"github.com/skep-dev/skep/nodemode/source"
)

// fetchTimeout is how long a source may take, from fetching it to its rendered
// definitions, before it is given up.
const fetchTimeout = 2 * time.Minute

// fetched is what a fetch came to. Without changed, the definitions are those
// read before.
type fetched struct {
	tree    source.Tree
	defs    definitions
	changed bool
	err     error
}

// errFetching is what a sync goes on with where a fetch takes its time.
var errFetching = errors.New("the source has not answered yet; what was read last stays active")

// fetch brings the source up to date beside the loop, and renders it there, so
// that neither a server nor a disk that hangs keeps a revocation or a changed
// policy waiting. A fetch is waited for once: syncs after that only look whether
// it has ended.
func (h *Host) fetch(ctx context.Context) (fetched, error) {
	wait := time.Duration(0)
	if h.fetching == nil {
		h.fetching, wait = h.begin(ctx), h.waited
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case f := <-h.fetching:
		h.fetching = nil
		return f, f.err
	default:
	}
	select {
	case f := <-h.fetching:
		h.fetching = nil
		return f, f.err
	case <-timer.C:
		return fetched{}, errFetching
	case <-ctx.Done():
		return fetched{}, ctx.Err()
	}
}

// mostReads is how often a folder is read that changed while it was read.
const mostReads = 3

// begin starts a fetch; its result comes out of the channel.
func (h *Host) begin(ctx context.Context) chan fetched {
	out, before := make(chan fetched, 1), h.tree.State
	go func() {
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		f := h.fetchOnce(ctx, before)
		for reads := 1; reads < mostReads && f.changed && f.err == nil && f.tree.HasChanged(); reads++ {
			f = h.fetchOnce(ctx, before)
		}
		out <- f
	}()
	return out
}

// fetchOnce reads the source, where its state is another than before.
func (h *Host) fetchOnce(ctx context.Context, before string) (f fetched) {
	f.tree, f.err = h.source.Fetch(ctx)
	if f.changed = f.err == nil && f.tree.State != before; f.changed {
		f.defs, f.err = load(ctx, f.tree, h.opts.Path)
	}
	return f
}
