// Package closing closes links beside the agent's loop, where the kernel takes long to end them:
// about 0.1 s for each probe and tracepoint of perf events, one after the other whoever closes
// them. It owns their order and the bounds. It does not know what is closed, and removes no pin:
// whoever hands a link over removed it before, so that the link ends with the process.
package closing

import (
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of closing.
const (
	// maxPerOwner is how many links of an owner wait or are being closed. The others keep
	// their pins, and stay with whoever ends them.
	maxPerOwner = 16
	// maxWaiting is how many those of all owners are together, beyond which each has one.
	maxWaiting = 64
	// slowClose is how long a close takes before the next begins beside it, and maxUnderWay how
	// many are under way at most, each on a thread of its own. An owner has one.
	slowClose, maxUnderWay = 2 * time.Second, 64
)

// Link is a link that is to be closed.
type Link struct {
	Closer io.Closer
	// What names it for the log.
	What string
	// Owner is who shares one turn: a owner, or one application of the cluster.
	Owner string
	// Replaced says that another link runs in its place. Until it is closed, both count an
	// event, so it is the next of its owner.
	Replaced bool
}

// Closing is the close of a link.
type Closing struct {
	link  Link
	began time.Time
	slow  bool
	done  chan struct{}
	// begun is whether it is under way.
	begun atomic.Bool
}

// HasBegun reports whether the kernel was asked; until then the link waits for others.
func (c *Closing) HasBegun() bool { return c.begun.Load() }

// IsDone reports whether the kernel has answered. A nil Closing is done.
func (c *Closing) IsDone() bool {
	if c == nil {
		return true
	}
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// Queue closes links one after the other, the owners in turn. All methods may be called
// from any goroutine.
type Queue struct {
	clock func() time.Time
	log   *slog.Logger
	// ended holds a value when a owner has no link left that waits.
	ended chan struct{}
	wait  sync.WaitGroup

	mu sync.Mutex
	// turns are the owners with links that wait, the next one first.
	turns    []string
	waiting  map[string][]*Closing
	underWay map[string]*Closing
}

// NewQueue returns an empty queue.
func NewQueue(clock func() time.Time, log *slog.Logger) *Queue {
	return &Queue{clock: clock, log: log, ended: make(chan struct{}, 1), waiting: map[string][]*Closing{}, underWay: map[string]*Closing{}}
}

// Ended yields when every link of a owner was closed: there is room for more of it.
func (q *Queue) Ended() <-chan struct{} { return q.ended }

// HasRoom reports whether a owner may hand over a link. One that was replaced may not wait
// for others of its owner that were.
func (q *Queue) HasRoom(owner string, replaced bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if replaced {
		return !slices.ContainsFunc(q.waiting[owner], func(c *Closing) bool { return c.link.Replaced }) &&
			(q.underWay[owner] == nil || !q.underWay[owner].link.Replaced)
	}
	own := q.of(owner)
	return own == 0 || own < maxPerOwner && q.all() < maxWaiting
}

// Add closes a link as soon as it is its turn. The queue owns it from now on.
func (q *Queue) Add(l Link) *Closing {
	q.mu.Lock()
	defer q.mu.Unlock()
	c, own := &Closing{link: l, done: make(chan struct{})}, q.waiting[l.Owner]
	if len(own) == 0 {
		q.turns = append(q.turns, l.Owner)
	}
	at := len(own)
	if l.Replaced {
		at = 0
	}
	q.waiting[l.Owner] = slices.Insert(own, at, c)
	q.startNext()
	return c
}

// Waiting returns how many links of a owner are not closed yet.
func (q *Queue) Waiting(owner string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.of(owner)
}

// Continue begins the next close where the one before it takes long, which it logs once.
func (q *Queue) Continue() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.startNext()
}

// Close waits until every link is closed. The queue is empty then, and can be used again.
func (q *Queue) Close() { q.wait.Wait() }

func (q *Queue) of(owner string) int {
	own := len(q.waiting[owner])
	if q.underWay[owner] != nil {
		own++
	}
	return own
}

func (q *Queue) all() int {
	all := len(q.underWay)
	for _, own := range q.waiting {
		all += len(own)
	}
	return all
}

// startNext begins what may begin: one close, and beside those that take long another one.
func (q *Queue) startNext() {
	for q.allSlow() && len(q.underWay) < maxUnderWay {
		i := slices.IndexFunc(q.turns, func(owner string) bool { return q.underWay[owner] == nil })
		if i < 0 {
			return
		}
		owner := q.turns[i]
		q.turns = slices.Delete(q.turns, i, i+1)
		own := q.waiting[owner]
		c := own[0]
		if q.waiting[owner] = own[1:]; len(own) > 1 {
			q.turns = append(q.turns, owner)
		} else {
			delete(q.waiting, owner)
		}
		q.begin(c)
	}
}

// allSlow reports whether every close that is under way takes long.
func (q *Queue) allSlow() bool {
	all := true
	for _, c := range q.underWay {
		if !c.slow && q.clock().Sub(c.began) > slowClose {
			c.slow = true
			q.log.Warn("the kernel takes long to close a link; other links of its owner wait", "link", c.link.What)
		}
		all = all && c.slow
	}
	return all
}

func (q *Queue) begin(c *Closing) {
	c.began = q.clock()
	c.begun.Store(true)
	q.underWay[c.link.Owner] = c
	q.wait.Go(func() {
		err := c.link.Closer.Close()
		if err != nil {
			q.log.Error("close link", "link", c.link.What, "error", err)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.underWay, c.link.Owner)
		close(c.done)
		q.startNext()
		if q.of(c.link.Owner) == 0 || c.link.Replaced {
			q.notify()
		}
	})
}

// notify wakes the loop.
func (q *Queue) notify() {
	select {
	case q.ended <- struct{}{}:
	default:
	}
}
