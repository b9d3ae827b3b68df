package nodemode

import (
	"context"
	"errors"
	"time"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/disk"
)

// What is on disk is looked at every pruneEvery, and every pruneSoon while there is more
// of it than is wanted.
const (
	pruneEvery = time.Hour
	pruneSoon  = time.Minute
)

// How many bytes of bytecode, and of signatures, may stay when they are pruned, and how
// many are kept until then. What is active is never dropped.
const (
	cacheBytes     = 256 << 20
	maxCacheBytes  = 1 << 30
	memoryBytes    = 256 << 20
	maxMemoryBytes = 512 << 20
)

// cacheSpares is how long bytecode is spared that was used: longer than an evaluation
// takes.
const cacheSpares = 3 * time.Minute

// staleFor is how long signatures count while their registry is out of reach.
const staleFor = 24 * time.Hour

// prune drops the bytecode that nothing active needs, and the signatures that are too
// old to count or too many. What cannot be pruned is no reason to stop.
func (h *Host) prune(ctx context.Context) {
	since := h.opts.Now().Sub(h.pruned)
	full := h.images.Cache().Bytes() > cacheBytes || h.memory.Held() > memoryBytes
	if since < pruneSoon || since < pruneEvery && !full {
		return
	}
	h.pruned = h.opts.Now()
	needed := map[string]bool{}
	for _, p := range h.live() {
		needed[p.ImageDigest], needed[p.ObjectDigest] = true, true
	}
	keep := func(d string) bool { return needed[d] }
	if _, err := h.images.Cache().Prune(ctx, disk.PruneOptions{MaxBytes: cacheBytes, MinAge: cacheSpares, Keep: keep}); err != nil {
		h.opts.Log.Warn("prune bytecode cache", "error", err)
	}
	if err := h.memory.Prune(memoryBytes, staleFor, keep); err != nil {
		h.opts.Log.Warn("prune remembered signatures", "error", err)
	}
}

// object is what the agent asks for an object: the cache, or where that had no room for
// it, the image of the intent that names it.
func (h *Host) object(ctx context.Context, digest string) ([]byte, error) {
	object, err := h.images.Object(ctx, digest)
	if !errors.Is(err, image.ErrNotFound) {
		return object, err
	}
	for _, p := range h.live() {
		if p.ObjectDigest != digest || p.Tombstone {
			continue
		}
		pinned, pinErr := h.images.Pin(p.Image, p.ImageDigest)
		if pinErr != nil {
			return nil, pinErr
		}
		pulled, pullErr := h.images.Pull(ctx, pinned)
		if pullErr != nil {
			return nil, pullErr
		}
		object := pulled.Object
		pulled.Release()
		return object, nil
	}
	return nil, err
}
