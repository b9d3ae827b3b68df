package disk

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/image"
)

// defaultMinAge leaves time between a Pull and the note that its object is
// needed.
const defaultMinAge = 10 * time.Minute

// PruneOptions say what a cache must go on holding.
type PruneOptions struct {
	// Keep is asked for every digest in the cache, as sha256:…. An image that is
	// kept keeps its manifests, config and layers; its object is kept by its own
	// digest. Nil keeps nothing.
	Keep func(digest string) bool
	// MaxBytes is what the cache may hold before anything is dropped; then the
	// least recently used goes first. What is kept counts and is never dropped.
	MaxBytes int64
	// MaxAge is how long what is not kept stays unused, whatever MaxBytes leaves
	// room for. Zero means that only MaxBytes counts.
	MaxAge time.Duration
	// MinAge spares what was used since, so that a Pull under way in any process
	// finds what it stored. Zero means 10 min.
	MinAge time.Duration
}

// Pruned is what Prune dropped and left.
type Pruned struct {
	// Blobs and Bytes were dropped.
	Blobs int
	Bytes int64
	// Left is the size of what remains, in bytes.
	Left int64
}

// cached is one blob in the cache's folder.
type cached struct {
	digest v1.Hash
	size   int64
	used   time.Time
}

// Prune drops blobs from the cache until it is within bounds, and what killed
// processes left half-written. It does nothing where the cache is nil.
func (c *Cache) Prune(ctx context.Context, options PruneOptions) (Pruned, error) {
	if c == nil {
		return Pruned{}, nil
	}
	options.MinAge = cmp.Or(options.MinAge, defaultMinAge)
	release, err := lockDir(c.dir, syscall.LOCK_EX)
	if err != nil {
		return Pruned{}, image.OfKind(image.ErrCache, fmt.Errorf("prune cache: %w", err))
	}
	defer release()
	blobs, err := c.list(options.MinAge)
	if err != nil {
		return Pruned{}, image.OfKind(image.ErrCache, fmt.Errorf("prune cache: %w", err))
	}
	var result Pruned
	for _, b := range blobs {
		result.Left += b.size
	}
	due := func(b cached) bool {
		age := time.Since(b.used)
		return age >= options.MinAge && (result.Left > options.MaxBytes || options.MaxAge > 0 && age >= options.MaxAge)
	}
	// What is kept is told by reading it: only where something may go.
	kept := map[v1.Hash]bool{}
	if slices.ContainsFunc(blobs, due) {
		if kept, err = c.kept(blobs, options.Keep); err != nil {
			return result, err
		}
	}
	for _, b := range blobs {
		if !due(b) || kept[b.digest] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return result, err
		}
		if err := os.Remove(c.path(b.digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return result, cacheError("drop blob", b.digest, err)
		}
		result.Blobs++
		result.Bytes += b.size
		result.Left -= b.size
	}
	c.held.Store(result.Left)
	if err := c.sweepLinks(options.MinAge); err != nil {
		return result, image.OfKind(image.ErrCache, fmt.Errorf("prune links: %w", err))
	}
	return result, nil
}

// Bytes returns how many bytes the cache holds, as this process counted them: when it
// was pruned, and what was put into it since. It is zero without a cache.
func (c *Cache) Bytes() int64 {
	if c == nil {
		return 0
	}
	return c.held.Load()
}

// count counts what is held. No other process writes meanwhile, so what it has half
// written stays.
func (c *Cache) count(minAge time.Duration) error {
	release, err := lockDir(c.dir, syscall.LOCK_EX)
	if err != nil {
		return err
	}
	defer release()
	_, err = c.list(minAge)
	return err
}

// list returns the blobs, least recently used first, and removes what a writer
// that is gone left behind.
func (c *Cache) list(minAge time.Duration) ([]cached, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, err
	}
	var blobs []cached
	held := int64(0)
	defer func() { c.held.Store(held) }()
	for _, entry := range entries {
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		held += info.Size()
		digest, err := v1.NewHash("sha256:" + entry.Name())
		if err == nil {
			blobs = append(blobs, cached{digest: digest, size: info.Size(), used: info.ModTime()})
			continue
		}
		if atomicfile.IsTemporary(entry.Name()) && time.Since(info.ModTime()) >= minAge {
			if err := os.Remove(c.dir + "/" + entry.Name()); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(blobs, func(a, b cached) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.digest.Hex, b.digest.Hex))
	})
	return blobs, nil
}

// kept marks what Keep names and everything that leads on from there. Where that
// cannot be read, it is not known what leads on, and nothing is to go.
func (c *Cache) kept(blobs []cached, keep func(string) bool) (map[v1.Hash]bool, error) {
	marked := map[v1.Hash]bool{}
	if keep == nil {
		return marked, nil
	}
	var mark func(v1.Hash, int) error
	mark = func(digest v1.Hash, depth int) error {
		marked[digest] = true
		if depth == 0 {
			return nil
		}
		next, err := c.references(digest, c.manifestBytes)
		for _, d := range next {
			err = errors.Join(err, mark(d, depth-1))
		}
		return err
	}
	for _, b := range blobs {
		if keep(b.digest.String()) {
			// An index leads to manifests, and they to configs and layers.
			if err := mark(b.digest, 2); err != nil {
				return nil, err
			}
		}
	}
	return marked, nil
}

// references are the digests that a cached manifest or index names.
func (c *Cache) references(digest v1.Hash, limit int64) ([]v1.Hash, error) {
	data, err := readRegular(c.path(digest), limit)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotRegular), errors.Is(err, image.ErrTooLong):
		return nil, nil
	case err != nil:
		return nil, cacheError("read blob", digest, err)
	case !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")):
		return nil, nil
	}
	doc, err := image.ParseDocument(digest, data)
	if err != nil {
		return nil, nil //nolint:nilerr // what is no manifest names nothing
	}
	var found []v1.Hash
	if doc.Index != nil {
		for _, d := range doc.Index.Manifests {
			found = append(found, d.Digest)
		}
		return found, nil
	}
	for _, d := range append([]v1.Descriptor{doc.Image.Config}, doc.Image.Layers...) {
		found = append(found, d.Digest)
	}
	return found, nil
}
