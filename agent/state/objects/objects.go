// Package objects keeps bytecode objects on disk by digest, and fetches those that are not
// there beside the agent's loop. It hashes what it fetches and what it reads. A Cache
// does not know which intents name an object.
package objects

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/atomicfile"
)

// ErrFetching is the error of an object that is being fetched.
var ErrFetching = errors.New("the object is being fetched")

// The bounds of fetches, so that no owner takes the memory and the connections of all: how many are under way
// of an owner, and how many of all that take less than slowFetch.
const (
	perOwner, concurrent = 4, 32
	slowFetch            = 2 * time.Second
)

// Options are those of a Cache. All are required.
type Options struct {
	// Dir is the folder that holds the objects.
	Dir string
	// Fetch returns the object with the digest (sha256:…). Timeout bounds one call.
	Fetch   func(ctx context.Context, digest string) ([]byte, error)
	Timeout time.Duration
	Log     *slog.Logger
	// Wake is called, from any goroutine, when a fetch ended.
	Wake func()
}

// Cache holds objects. Its methods may be called from several goroutines.
type Cache struct {
	opts  Options
	queue *queue.Queue

	mu sync.Mutex
	// fetches are those in progress, and those that failed or ended since they were asked
	// for last; by digest.
	fetches map[string]*fetch
}

// fetch is one fetch; err may be read when the ticket is done.
type fetch struct {
	ticket *queue.Ticket
	err    error
}

// New returns the cache of the objects in a folder.
func New(o Options) *Cache {
	return &Cache{opts: o, fetches: map[string]*fetch{}, queue: queue.New(queue.Options{
		PerOwner: perOwner, Concurrent: concurrent, Slow: slowFetch, SlowMessage: "an object is fetched slowly", Log: o.Log, Wake: o.Wake,
	})}
}

// Close cancels what is being fetched, and waits for it to end.
func (c *Cache) Close() {
	c.queue.Close()
	c.queue.Wait()
}

// Has reports whether an object is on disk. Read finds out whether it is whole.
func (c *Cache) Has(digest string) bool {
	info, err := os.Stat(c.path(digest))
	return err == nil && info.Mode().IsRegular()
}

// available returns nil where an object is on disk, and else has it fetched at a turn of the owner: it fails with
// ErrFetching until that ended.
func (c *Cache) available(digest, owner string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.fetches[digest]
	isDone := f != nil && f.ticket.IsDone()
	if isDone {
		// Prune may remove the object again.
		delete(c.fetches, digest)
	}
	switch {
	case c.Has(digest):
		return nil
	case f == nil:
		return c.fetch(digest, owner)
	case !isDone:
		f.ticket.Join(owner)
		return ErrFetching
	}
	return cmp.Or(f.err, errors.New("it is not in the cache where it was kept; is the disk full?"))
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

// fetch begins a fetch at a turn of the owner.
func (c *Cache) fetch(digest, owner string) error {
	f := new(fetch)
	f.ticket = c.queue.Add(queue.Job{What: digest, Owners: []string{owner}, Urgent: true, Run: func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
		defer cancel()
		f.err = c.fetchAndKeep(ctx, digest)
		return true
	}})
	if f.ticket == nil {
		return context.Canceled
	}
	c.fetches[digest] = f
	return ErrFetching
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
