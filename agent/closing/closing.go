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
	"time"
)

// The bounds of closing.
const (
	// maxPerNamespace is how many links of a namespace wait or are being closed. The others keep
	// their pins, and stay with whoever ends them.
	maxPerNamespace = 16
	// maxWaiting is how many those of all namespaces are together, beyond which each has one.
	maxWaiting = 64
	// slowClose is how long a close takes before the next begins beside it, and maxUnderWay how
	// many are under way at most. A namespace has one.
	slowClose, maxUnderWay = 2 * time.Second, 8
)

// Link is a link that is to be closed.
type Link struct {
	Closer io.Closer
	// What names it for the log.
	What string
	// Namespace is whose it is; empty where it is the cluster's.
	Namespace string
	// Replaced says that another link runs in its place. Until it is closed, both count an
	// event, so it is the next of its namespace.
	Replaced bool
}

// Closing is the close of a link.
type Closing struct {
	link  Link
	began time.Time
	slow  bool
	done  chan struct{}
}

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

// Queue closes links one after the other, the namespaces in turn. All methods may be called
// from any goroutine.
type Queue struct {
	clock func() time.Time
	log   *slog.Logger
	// ended holds a value when a namespace has no link left that waits.
	ended chan struct{}
	wait  sync.WaitGroup

	mu sync.Mutex
	// turns are the namespaces with links that wait, the next one first.
	turns    []string
	waiting  map[string][]*Closing
	underWay map[string]*Closing
}

// NewQueue returns an empty queue.
func NewQueue(clock func() time.Time, log *slog.Logger) *Queue {
	return &Queue{clock: clock, log: log, ended: make(chan struct{}, 1), waiting: map[string][]*Closing{}, underWay: map[string]*Closing{}}
}

// Ended yields when every link of a namespace was closed: there is room for more of it.
func (q *Queue) Ended() <-chan struct{} { return q.ended }

// HasRoom reports whether a namespace may hand over a link. One that was replaced may not wait
// for others of its namespace that were.
func (q *Queue) HasRoom(namespace string, replaced bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if replaced {
		return !slices.ContainsFunc(q.waiting[namespace], func(c *Closing) bool { return c.link.Replaced }) &&
			(q.underWay[namespace] == nil || !q.underWay[namespace].link.Replaced)
	}
	own := q.of(namespace)
	return own == 0 || own < maxPerNamespace && q.all() < maxWaiting
}

// Add closes a link as soon as it is its turn. The queue owns it from now on.
func (q *Queue) Add(l Link) *Closing {
	q.mu.Lock()
	defer q.mu.Unlock()
	c, own := &Closing{link: l, done: make(chan struct{})}, q.waiting[l.Namespace]
	if len(own) == 0 {
		q.turns = append(q.turns, l.Namespace)
	}
	at := len(own)
	if l.Replaced {
		at = 0
	}
	q.waiting[l.Namespace] = slices.Insert(own, at, c)
	q.startNext()
	return c
}

// Waiting returns how many links of a namespace are not closed yet.
func (q *Queue) Waiting(namespace string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.of(namespace)
}

// Continue begins the next close where the one before it takes long, which it logs once.
func (q *Queue) Continue() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.startNext()
}

// Close waits until every link is closed. The queue is empty then, and can be used again.
func (q *Queue) Close() { q.wait.Wait() }

func (q *Queue) of(namespace string) int {
	own := len(q.waiting[namespace])
	if q.underWay[namespace] != nil {
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
		i := slices.IndexFunc(q.turns, func(namespace string) bool { return q.underWay[namespace] == nil })
		if i < 0 {
			return
		}
		namespace := q.turns[i]
		q.turns = slices.Delete(q.turns, i, i+1)
		own := q.waiting[namespace]
		c := own[0]
		if q.waiting[namespace] = own[1:]; len(own) > 1 {
			q.turns = append(q.turns, namespace)
		} else {
			delete(q.waiting, namespace)
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
			q.log.Warn("the kernel takes long to close a link; other links of its namespace wait", "link", c.link.What)
		}
		all = all && c.slow
	}
	return all
}

func (q *Queue) begin(c *Closing) {
	c.began = q.clock()
	q.underWay[c.link.Namespace] = c
	q.wait.Go(func() {
		err := c.link.Closer.Close()
		if err != nil {
			q.log.Error("close link", "link", c.link.What, "error", err)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.underWay, c.link.Namespace)
		close(c.done)
		q.startNext()
		if q.of(c.link.Namespace) == 0 || c.link.Replaced {
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
