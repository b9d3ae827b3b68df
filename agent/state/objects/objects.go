// Package objects keeps bytecode objects on disk by digest, and fetches those that are not
// there beside the agent's loop. It hashes what it fetches and what it reads. A Cache
// does not know which intents name an object.
package objects

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/skep-dev/skep/atomicfile"
)

// ErrFetching is the error of an object that is being fetched.
var ErrFetching = errors.New("the object is being fetched")

// Options are those of a Cache. All are required.
type Options struct {
	// Dir is the folder that holds the objects.
	Dir string
	// Fetch returns the object with the digest (sha256:…). Timeout bounds one call.
	Fetch   func(ctx context.Context, digest string) ([]byte, error)
	Timeout time.Duration
	// Wake is called, from any goroutine, when a fetch ended.
	Wake func()
}

// Cache holds objects. Its methods may be called from several goroutines.
type Cache struct {
	opts Options
	wait sync.WaitGroup

	mu sync.Mutex
	// fetches are those in progress, and those that failed or ended since they were asked
	// for last; by digest.
	fetches map[string]*fetch
	closed  bool
}

// fetch is one fetch; err may be read after done.
type fetch struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func (f *fetch) isDone() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// New returns the cache of the objects in a folder.
func New(o Options) *Cache { return &Cache{opts: o, fetches: map[string]*fetch{}} }

// Close cancels what is being fetched, and waits for it to end.
func (c *Cache) Close() {
	c.mu.Lock()
	c.closed = true
	for _, f := range c.fetches {
		f.cancel()
	}
	c.mu.Unlock()
	c.wait.Wait()
}

// Has reports whether an object is on disk. Read finds out whether it is whole.
func (c *Cache) Has(digest string) bool {
	info, err := os.Stat(c.path(digest))
	return err == nil && info.Mode().IsRegular()
}

// Available returns nil where an object is on disk, and else has it fetched: it fails with
// ErrFetching until that ended.
func (c *Cache) Available(digest string) error {
	if c.Has(digest) {
		c.forgetEnded(digest)
		return nil
	}
	f := c.fetch(digest)
	if !f.isDone() {
		return ErrFetching
	}
	c.forgetEnded(digest)
	if f.err != nil {
		return f.err
	}
	if !c.Has(digest) {
		return errors.New("it is not in the cache where it was kept; is the disk full?")
	}
	return nil
}

// Read reads an object from disk. One that is not there, or that a crash tore and that is
// dropped therefore, has to be fetched again: it fails with ErrFetching.
func (c *Cache) Read(digest string) ([]byte, error) {
	path := c.path(digest)
	body, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrFetching
	}
	if err != nil {
		return nil, fmt.Errorf("read kept object: %w", err)
	}
	if checkDigest(digest, body) == nil {
		return body, nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("drop torn object: %w", err)
	}
	return nil, ErrFetching
}

// Prune removes the objects that are not used, but for those that are being fetched.
func (c *Cache) Prune(used map[string]bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, err := os.ReadDir(c.opts.Dir)
	if err != nil {
		return fmt.Errorf("list kept objects: %w", err)
	}
	for _, e := range entries {
		digest := "sha256:" + e.Name()
		if used[digest] || c.fetches[digest] != nil || atomicfile.IsTemporary(e.Name()) {
			continue
		}
		if err := os.Remove(filepath.Join(c.opts.Dir, e.Name())); err != nil {
			return fmt.Errorf("drop kept object: %w", err)
		}
	}
	return nil
}

// forgetEnded forgets a fetch that ended: Prune may remove its object again.
func (c *Cache) forgetEnded(digest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.fetches[digest]; f != nil && f.isDone() {
		delete(c.fetches, digest)
	}
}

// fetch begins a fetch, or returns the one that is in progress.
func (c *Cache) fetch(digest string) *fetch {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.fetches[digest]; f != nil {
		return f
	}
	if c.closed {
		f := &fetch{cancel: func() {}, done: make(chan struct{}), err: context.Canceled}
		close(f.done)
		return f
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.opts.Timeout)
	f := &fetch{cancel: cancel, done: make(chan struct{})}
	c.fetches[digest] = f
	c.wait.Go(func() {
		defer c.opts.Wake()
		defer close(f.done)
		defer cancel()
		f.err = c.fetchAndKeep(ctx, digest)
	})
	return f
}

func (c *Cache) fetchAndKeep(ctx context.Context, digest string) error {
	body, err := c.opts.Fetch(ctx, digest)
	if err != nil {
		return err
	}
	if err := checkDigest(digest, body); err != nil {
		return err
	}
	return c.put(digest, body)
}

// put writes an object. It is not synced: one that a crash tore does not
// hash to its name, and is fetched again.
func (c *Cache) put(digest string, body []byte) error {
	if err := atomicfile.WriteUnsynced(c.path(digest), body); err != nil {
		return fmt.Errorf("keep object: %w", err)
	}
	return nil
}

func (c *Cache) path(digest string) string {
	return filepath.Join(c.opts.Dir, filepath.Base(strings.TrimPrefix(digest, "sha256:")))
}

// checkDigest returns an error unless the bytes have the digest.
func checkDigest(digest string, body []byte) error {
	sum := sha256.Sum256(body)
	if have := "sha256:" + hex.EncodeToString(sum[:]); have != digest {
		return fmt.Errorf("check object: it hashes to %s and the intent names %s; what serves it was changed", have, digest)
	}
	return nil
}
