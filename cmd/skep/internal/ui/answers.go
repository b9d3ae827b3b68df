package ui

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// answers are what the source said lately, by what was asked: however many tabs ask, the source is asked once in a while.
type answers struct {
	seed maphash.Seed

	// mu guards cells, which are dropped in the order of their use, and bytes, which they have together.
	mu    sync.Mutex
	cells *simplelru.LRU[string, *cell]
	bytes int
}

// cell is one answer. Those who ask while it is read wait for it.
type cell struct {
	// turn has a place for the one that reads.
	turn chan struct{}
	at   time.Time
	// took is how long it was read.
	took time.Duration
	last answer
	// size is what it has of the bytes, and dropped reports that it counts no more. Both are guarded by the answers' mutex.
	size    int
	dropped bool
	// ahead reports that it was read before a browser asked.
	ahead bool
}

// answer is JSON with a tag that changes with it, or why there is none.
type answer struct {
	body []byte
	tag  string
	err  error
}

func newAnswers() *answers {
	a := &answers{seed: maphash.MakeSeed()}
	// It fails for no places alone.
	a.cells, _ = simplelru.NewLRU(maxAnswers, func(_ string, c *cell) {
		a.bytes, c.dropped = a.bytes-c.size, true
	})
	return a
}

// cell is the one of a key.
func (a *answers) cell(key string) *cell {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, known := a.cells.Get(key)
	if !known {
		c = &cell{turn: make(chan struct{}, 1)}
		a.cells.Add(key, c)
	}
	return c
}

// aheadFor is how long what was read before a browser asked is better than to wait.
const aheadFor = time.Minute

// prepare reads the answer to a key before a browser asks for it.
func (a *answers) prepare(ctx context.Context, key string, read reader) {
	c := a.cell(key)
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	a.read(ctx, c, read)
	c.ahead = true
}

// reader reads from the source.
type reader func(context.Context) (any, error)

// waiting is how long a browser waits for an answer, if the source does not end in time either.
const waiting = patience + 5*time.Second

// errHangs says what makes a source deaf to its time.
var errHangs = fmt.Errorf("no answer for %s: look at the terminal of skep ui, where a credential plug-in of your kubeconfig may wait for you", waiting)

// get returns the answer to a key, read anew if it is older than fresh. Reading continues for the others if ctx ends.
func (a *answers) get(ctx context.Context, key string, fresh time.Duration, read reader) answer {
	c := a.cell(key)
	limited, cancel := context.WithTimeoutCause(ctx, waiting, errHangs)
	defer cancel()
	select {
	case c.turn <- struct{}{}:
	case <-limited.Done():
		return answer{err: context.Cause(limited)}
	}
	got := make(chan answer, 1)
	go func() {
		defer func() { <-c.turn }()
		if age := time.Since(c.at); age >= c.pause(fresh) && (!c.ahead || age >= aheadFor || c.last.err != nil) {
			a.read(context.WithoutCancel(ctx), c, read)
		}
		c.ahead = false
		got <- c.last
	}()
	select {
	case last := <-got:
		return last
	case <-limited.Done():
		return answer{err: context.Cause(limited)}
	}
}

// pause is how long an answer is good: a large fleet, which is read slowly, is read less often.
func (c *cell) pause(fresh time.Duration) time.Duration {
	if c.last.err != nil {
		return fresh
	}
	return max(fresh, rest*c.took)
}

// read reads the answer of a cell, whose turn the caller has.
func (a *answers) read(ctx context.Context, c *cell, read reader) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	v, err := read(limited)
	c.last, c.at, c.took = encode(v, err, a.seed), time.Now(), time.Since(began)
	a.bound(c)
}

// bound counts the bytes of a cell's new answer, and drops answers that were not asked for lately where all have too many.
func (a *answers) bound(c *cell) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.dropped {
		return
	}
	a.bytes, c.size = a.bytes+len(c.last.body)-c.size, len(c.last.body)
	for a.bytes > maxAllBytes {
		a.cells.RemoveOldest()
	}
}
