// Package calls makes calls of the kernel that may take long beside the agent's loop: to make a
// link of a probe, and to end one. The kernel makes most of them one after the other no matter who
// asks, and a process in a pod can hold up one for as long as it wishes. The package owns their
// order and their bounds. It does not know what is called. A call cannot be cancelled.
package calls

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of calls.
const (
	// maxPerOwner is how many calls of an owner wait or are under way. The others stay with
	// the caller that wants them.
	maxPerOwner = 16
	// maxWaiting is how many those of all owners are together, beyond which each has one.
	maxWaiting = 64
	// slowCall is how long a call takes before it is logged and, in a queue without Together,
	// before the next begins beside it. maxUnderWay is how many are under way at most, each on
	// a thread of its own. An owner has one.
	slowCall, maxUnderWay = 2 * time.Second, 64
)

// Call is a call of the kernel.
type Call struct {
	// Run makes the call, on a goroutine of its own.
	Run func()
	// What names it for the log.
	What string
	// Owner is who shares one turn: a namespace, or one application of the cluster.
	Owner string
	// Urgent calls are the next of their owner, and the end of each wakes the loop; of the
	// others, that of the owner's last one does.
	Urgent bool
	// Awaited: its end wakes nobody before Await gave up.
	Awaited bool
}

// Pending is a call that was handed over.
type Pending struct {
	call  Call
	began time.Time
	slow  bool
	done  chan struct{}
	// begun is whether it is under way.
	begun atomic.Bool
}

// HasBegun reports whether the kernel was asked; until then the call waits for others.
func (p *Pending) HasBegun() bool { return p.begun.Load() }

// IsDone reports whether the kernel has answered. A nil Pending is done.
func (p *Pending) IsDone() bool {
	if p == nil {
		return true
	}
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Options are what a queue is told once. Clock, Log and Wake are required.
type Options struct {
	Clock func() time.Time
	Log   *slog.Logger
	// Doing says what the calls do, for the log, such as "close a link".
	Doing string
	// Together has the calls of several owners be under way at once. Otherwise one is, and
	// beside those that take long another one.
	Together bool
	// Wake wakes the loop. It is called from any goroutine, and may not call the queue.
	Wake func()
}

// Queue makes calls, of each owner one after the other, the owners in turn. All methods may be
// called from any goroutine.
type Queue struct {
	Options
	wait sync.WaitGroup

	mu sync.Mutex
	// turns are the owners with calls that wait, the next one first.
	turns    []string
	waiting  map[string][]*Pending
	underWay map[string]*Pending
}

// NewQueue returns an empty queue.
func NewQueue(o Options) *Queue {
	return &Queue{Options: o, waiting: map[string][]*Pending{}, underWay: map[string]*Pending{}}
}

// HasRoom reports whether an owner may hand over a call. If it is alone of its kind, no other
// urgent call of the owner may be left.
func (q *Queue) HasRoom(owner string, alone bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if alone {
		return !slices.ContainsFunc(q.waiting[owner], func(p *Pending) bool { return p.call.Urgent }) &&
			(q.underWay[owner] == nil || !q.underWay[owner].call.Urgent)
	}
	own := q.of(owner)
	return own == 0 || own < maxPerOwner && q.all() < maxWaiting
}

// Add makes a call as soon as it is its turn. The queue owns what the call uses from now on.
func (q *Queue) Add(c Call) *Pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	p, own := &Pending{call: c, done: make(chan struct{})}, q.waiting[c.Owner]
	if len(own) == 0 {
		q.turns = append(q.turns, c.Owner)
	}
	at := len(own)
	if c.Urgent {
		for at > 0 && !own[at-1].call.Urgent {
			at--
		}
	}
	q.waiting[c.Owner] = slices.Insert(own, at, p)
	q.startNext()
	return p
}

// Await waits for the answer of a call, at most that long, and reports whether it came. From then
// on the end of the call wakes the loop.
func (q *Queue) Await(p *Pending, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	p.call.Awaited = false
	return p.IsDone()
}

// Cancel takes back a call that has not begun, and reports whether it did: it is made no more.
func (q *Queue) Cancel(p *Pending) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	owner := p.call.Owner
	i := slices.Index(q.waiting[owner], p)
	if i < 0 {
		return false
	}
	if q.waiting[owner] = slices.Delete(q.waiting[owner], i, i+1); len(q.waiting[owner]) == 0 {
		delete(q.waiting, owner)
		q.turns = slices.DeleteFunc(q.turns, func(one string) bool { return one == owner })
	}
	return true
}

// Waiting returns how many calls of an owner have no answer yet.
func (q *Queue) Waiting(owner string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.of(owner)
}

// Continue logs once each call that takes long, and begins what may begin beside it.
func (q *Queue) Continue() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.startNext()
}

// Close waits until every call is made. The queue is empty then, and can be used again.
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

// startNext begins what may begin.
func (q *Queue) startNext() {
	for (q.allSlow() || q.Together) && len(q.underWay) < maxUnderWay {
		i := slices.IndexFunc(q.turns, func(owner string) bool { return q.underWay[owner] == nil })
		if i < 0 {
			return
		}
		owner := q.turns[i]
		q.turns = slices.Delete(q.turns, i, i+1)
		own := q.waiting[owner]
		p := own[0]
		if q.waiting[owner] = own[1:]; len(own) > 1 {
			q.turns = append(q.turns, owner)
		} else {
			delete(q.waiting, owner)
		}
		q.begin(p)
	}
}

// allSlow reports whether every call that is under way takes long.
func (q *Queue) allSlow() bool {
	all := true
	for _, p := range q.underWay {
		if !p.slow && q.Clock().Sub(p.began) > slowCall {
			p.slow = true
			q.Log.Warn("the kernel takes long to "+q.Doing+"; others of its owner wait", "link", p.call.What)
		}
		all = all && p.slow
	}
	return all
}

func (q *Queue) begin(p *Pending) {
	p.began = q.Clock()
	p.begun.Store(true)
	q.underWay[p.call.Owner] = p
	q.wait.Go(func() {
		p.call.Run()
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.underWay, p.call.Owner)
		close(p.done)
		q.startNext()
		if !p.call.Awaited && (p.call.Urgent || q.of(p.call.Owner) == 0) {
			q.Wake()
		}
	})
}
