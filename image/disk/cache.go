// Package disk keeps images in folders: a cache of blobs by digest, and OCI layouts.
//
// It owns the files below those folders, believes none of them, and shares them with other
// processes. It asks no registry.
package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/image"
)

// Cache keeps blobs by digest in DIR/blobs/sha256, as an OCI layout does:
// indexes, manifests, configs and layers as stored, and the objects out of
// them. A digest leads from one to the next, so nothing in the folder needs to
// be believed: every blob is hashed again when it is read. DIR/links says which
// repository held which image.
type Cache struct {
	dir, links string
	// most bounds what is put, by what is held: counted when the folder is listed,
	// and added to since. Zero is no bound.
	most int64
	held atomic.Int64
	// manifestBytes bounds what is read as a manifest when the cache is pruned.
	manifestBytes int64
}

// CacheOptions say where a cache is and what it holds.
type CacheOptions struct {
	// Dir is the cache's folder, made when it is missing.
	Dir string
	// MaxBytes is what the cache holds at most: beyond it, what is put is not kept
	// until Prune has dropped something. Zero means no bound.
	MaxBytes int64
	// ManifestBytes bounds a manifest or an index.
	ManifestBytes int64
	// Writing is how long a blob may take to be written: what is older and half
	// written was left by a process that is gone.
	Writing time.Duration
}

const cacheMode = 0o700

// OpenCache opens a cache, and counts what it holds where that is bounded.
func OpenCache(o CacheOptions) (*Cache, error) {
	c := &Cache{dir: filepath.Join(o.Dir, "blobs", "sha256"), links: filepath.Join(o.Dir, "links"), most: o.MaxBytes, manifestBytes: o.ManifestBytes}
	for _, folder := range []string{c.dir, c.links} {
		if err := os.MkdirAll(folder, cacheMode); err != nil {
			return nil, image.OfKind(image.ErrCache, fmt.Errorf("make cache folder: %w", err))
		}
	}
	if c.most > 0 {
		if err := c.count(o.Writing); err != nil {
			return nil, image.OfKind(image.ErrCache, fmt.Errorf("list cache: %w", err))
		}
	}
	return c, nil
}

func (c *Cache) path(digest v1.Hash) string { return filepath.Join(c.dir, digest.Hex) }

// Get returns the blob of that digest, or fs.ErrNotExist where there is none of
// at most limit bytes. A blob that has another digest is dropped and counts as
// missing, and so is what is no file. Any other error says nothing about the blob,
// which stays.
func (c *Cache) Get(digest v1.Hash, limit int64) ([]byte, error) {
	data, err := readRegular(c.path(digest), limit)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, err
	case errors.Is(err, image.ErrTooLong):
		return nil, fs.ErrNotExist
	case err == nil && image.Sum(data) == digest:
		c.touch(digest)
		return data, nil
	case err != nil && !errors.Is(err, errNotRegular):
		return nil, cacheError("read blob", digest, err)
	}
	if err := os.Remove(c.path(digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, cacheError("drop corrupt blob", digest, err)
	}
	return nil, fs.ErrNotExist
}

// Put stores a blob under its digest, where there is room. It is there whole or
// not at all, whatever happens on the way, and two writers of one digest do not
// disturb each other.
func (c *Cache) Put(digest v1.Hash, data []byte) error {
	// The lock keeps Prune, in whichever process, from dropping what is seen here.
	unlock, err := lockDir(c.dir, syscall.LOCK_SH)
	if err != nil {
		return cacheError("store blob", digest, err)
	}
	defer unlock()
	info, err := os.Lstat(c.path(digest))
	if err == nil && info.Mode().IsRegular() && info.Size() == int64(len(data)) && c.touch(digest) {
		return nil
	}
	if c.held.Add(int64(len(data))) > c.most && c.most > 0 {
		c.held.Add(-int64(len(data)))
		return nil
	}
	if err := atomicfile.Write(c.path(digest), data); err != nil {
		return cacheError("store blob", digest, err)
	}
	return nil
}

// touch notes that a blob is in use; Prune spares what was used lately. It
// reports whether the blob is there.
func (c *Cache) touch(digest v1.Hash) bool {
	now := time.Now()
	return os.Chtimes(c.path(digest), now, now) == nil
}

// Uses reports whether blobs are in the cache, and notes that they are in use.
func (c *Cache) Uses(blobs []v1.Hash) bool {
	for _, digest := range blobs {
		if info, err := os.Lstat(c.path(digest)); err != nil || !info.Mode().IsRegular() || !c.touch(digest) {
			return false
		}
	}
	return true
}

func cacheError(verb string, digest v1.Hash, err error) error {
	return image.OfKind(image.ErrCache, fmt.Errorf("%s %s in the cache: %w", verb, digest, err))
}

// lockDir takes flock's lock on a folder, LOCK_SH or LOCK_EX, and waits for it.
func lockDir(dir string, how int) (release func(), err error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(file.Fd()), how); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

var errNotRegular = errors.New("it is not a regular file")

// readRegular reads a regular file of at most limit bytes, without following a
// symlink in its place and without waiting on a pipe.
func readRegular(path string, limit int64) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENXIO):
		return nil, fmt.Errorf("read %s: %w", path, errNotRegular) // a symlink, a socket
	case err != nil:
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return readFile(file, limit)
}

func readFile(file *os.File, limit int64) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: %w", file.Name(), errNotRegular)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("read %s: %w", file.Name(), image.TooLong(limit))
	}
	return io.ReadAll(io.LimitReader(file, limit))
}

// Reading says how a blob is read by way of the cache.
type Reading int

const (
	// ThroughCache asks the source for what the cache lacks.
	ThroughCache Reading = iota
	// PastCache asks the source for everything, and fills the cache.
	PastCache
	// FromCache asks nobody.
	FromCache
)

// CachedSource looks into the cache first and fills it from the source behind.
type CachedSource struct {
	Cache         *Cache
	Next          image.Source
	ManifestBytes int64
	Reading       Reading
}

// cached is a blob of the cache; fs.ErrNotExist where the source is to be asked.
func (s *CachedSource) cached(digest v1.Hash, limit int64) ([]byte, error) {
	if s.Reading == PastCache {
		return nil, fs.ErrNotExist
	}
	data, err := s.Cache.Get(digest, limit)
	switch {
	case s.Reading == FromCache && errors.Is(err, fs.ErrNotExist):
		return nil, image.NotFound("read %s: it is not in the cache", digest)
	case s.Reading == ThroughCache && err != nil:
		// What the cache cannot read now, the source has as well.
		return nil, fs.ErrNotExist
	}
	return data, err
}

// Has reports whether a blob is to be read from the cache alone.
func (s *CachedSource) Has(d v1.Descriptor) bool {
	info, err := os.Lstat(s.Cache.path(d.Digest))
	return s.Reading != PastCache && err == nil && info.Mode().IsRegular() && info.Size() == d.Size
}

// Manifest implements image.Source.
func (s *CachedSource) Manifest(ctx context.Context, digest v1.Hash) ([]byte, error) {
	data, err := s.cached(digest, s.ManifestBytes)
	if !errors.Is(err, fs.ErrNotExist) {
		return data, err
	}
	if data, err = s.Next.Manifest(ctx, digest); err != nil {
		return nil, err
	}
	return data, s.Cache.Put(digest, data)
}

// Kept is a blob of the cache, as long as its descriptor says; fs.ErrNotExist
// where the source is to be asked.
func (s *CachedSource) Kept(d v1.Descriptor) ([]byte, error) {
	data, err := s.cached(d.Digest, d.Size)
	switch {
	case err != nil:
		return nil, err
	case int64(len(data)) == d.Size:
		return data, nil
	case s.Reading == FromCache:
		return nil, image.NotFound("read %s: the cache has one of another size", d.Digest)
	}
	// A descriptor that gives another size than the blob has is rejected the same
	// way, cached or not: by the source.
	return nil, fs.ErrNotExist
}

// Blob implements image.Source.
func (s *CachedSource) Blob(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	data, err := s.Kept(d)
	if !errors.Is(err, fs.ErrNotExist) {
		return data, err
	}
	if data, err = s.Next.Blob(ctx, d); err != nil {
		return nil, err
	}
	return data, s.Cache.Put(d.Digest, data)
}
