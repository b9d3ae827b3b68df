// Package recent remembers values, within a bound of entries and one of bytes: the value that
// was used longest ago makes room for another.
//
// It knows nothing of the values but their sizes, and stores nothing on disk.
package recent

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Options bound a Cache. All are needed.
type Options[V any] struct {
	// Entries is how many values are kept at most.
	Entries int
	// Bytes is how many bytes all values take at most. A value that takes more than half
	// of them is not kept.
	Bytes int
	// Size is how many bytes a value takes.
	Size func(V) int
}

// Cache remembers values by keys. It is safe for concurrent use.
type Cache[V any] struct {
	options Options[V]

	// mu guards what follows.
	mu sync.Mutex
	// values are in the order of their use, and bytes is how many they take.
	values *simplelru.LRU[string, sized[V]]
	bytes  int
}

// sized is a value and how many bytes it takes.
type sized[V any] struct {
	value V
	bytes int
}

// New makes an empty cache, of one entry at least.
func New[V any](o Options[V]) *Cache[V] {
	c := &Cache[V]{options: o}
	// It fails for no entries alone.
	c.values, _ = simplelru.NewLRU(max(o.Entries, 1), func(_ string, v sized[V]) { c.bytes -= v.bytes })
	return c
}

// Get finds a value, and counts as a use of it.
func (c *Cache[V]) Get(key string) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.values.Get(key)
	return v.value, ok
}

// Put keeps a value in the place of the one that the key has, which is dropped even if the
// new one is too large.
func (c *Cache[V]) Put(key string, value V) {
	v := sized[V]{value: value, bytes: c.options.Size(value)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.values.Remove(key)
	if v.bytes > c.options.Bytes/2 {
		return
	}
	for v.bytes > c.options.Bytes-c.bytes {
		c.values.RemoveOldest()
	}
	c.values.Add(key, v)
	c.bytes += v.bytes
}

// Held is how many values there are, and how many bytes they take.
func (c *Cache[V]) Held() (entries, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.values.Len(), c.bytes
}
