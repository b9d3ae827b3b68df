package ui

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// answers are what the source said lately, by what was asked: however many tabs ask, the source is asked once in a while.
type answers struct {
	seed maphash.Seed

	// mu guards cells, which are dropped in the order of their use.
	mu    sync.Mutex
	cells *simplelru.LRU[string, *cell]
}

// cell is one answer. Those who ask while it is read wait for it.
type cell struct {
	// turn has a place for the one that reads.
	turn chan struct{}
	at   time.Time
	last answer
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
	// It fails for no places alone.
	cells, _ := simplelru.NewLRU[string, *cell](maxAnswers, nil)
	return &answers{seed: maphash.MakeSeed(), cells: cells}
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

// get returns the answer to a key, read anew if it is older than fresh. Reading continues for the others if ctx ends.
func (a *answers) get(ctx context.Context, key string, fresh time.Duration, read reader) answer {
	c := a.cell(key)
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	}
	age := time.Since(c.at)
	if age >= fresh && (!c.ahead || age >= aheadFor || c.last.err != nil) {
		a.read(context.WithoutCancel(ctx), c, read)
	}
	c.ahead = false
	return c.last
}

// read reads the answer of a cell, whose turn the caller has.
func (a *answers) read(ctx context.Context, c *cell, read reader) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	v, err := read(limited)
	c.last, c.at = encode(v, err, a.seed), time.Now()
}
