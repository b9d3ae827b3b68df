// Package loads runs the kernel's verifier beside the agent's loop. It owns the queue of
// loads, their order and their results. It does not know what is loaded, and pins nothing.
package loads

import (
	"cmp"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/objects"
)

// slowLoad is how long a load takes before it is logged as slow.
const slowLoad = 10 * time.Second

// ErrLoading is the error of a load that the kernel's verifier has not checked yet.
var ErrLoading = errors.New("it waits for the kernel's verifier")

// Urgency is the purpose of a load. Loads of one urgency wait for no others.
type Urgency int

// The urgencies.
const (
	// ForNew loads bring something in, or change it.
	ForNew Urgency = iota
	// ForReplacing loads take the place of a program that may not run any more.
	ForReplacing
	// ForEnding loads are chains without a member that is to go, and nothing else.
	ForEnding
)

// Loadable is what is loaded into the kernel at once.
type Loadable string

// What is loaded: the programs and maps of an application, or one program out
// of several applications' for one interface.
const (
	RevisionLoad Loadable = "revision"
	ChainLoad    Loadable = "chain"
)

// Request is one load that a reconcile needs.
type Request struct {
	// key names exactly what is loaded.
	key string
	// Line names what waits for the load: a new version of it keeps the place in the queue.
	Line string
	// Tenants are the namespaces of the applications that wait for the load.
	Tenants []string
	Urgency Urgency
	// Claim is that to the memory for maps; nil where nothing is claimed.
	Claim *plan.Claim
	// What is loaded, for the observer; empty where nothing is.
	What Loadable
	// Start collects on the loop what the load needs, which is no object: thousands
	// may wait. The function it returns runs beside the loop, reads the object, owns
	// what it uses, and frees it; its value counts only without an error.
	Start func() (func(*btf.Cache) (io.Closer, error), error)
}

// Key names exactly what is loaded.
func (r Request) Key() string { return r.key }

// load is one load in progress. The fields after done may be read when it is
// closed.
type load struct {
	request Request
	began   time.Time
	slow    bool
	done    chan struct{}
	result  result
	took    time.Duration
}

func (l *load) isDone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// result is the outcome of a load.
type result struct {
	value io.Closer
	err   error
}

func (r result) close() error {
	if r.value == nil {
		return nil
	}
	return r.value.Close()
}

// lane runs one load at a time.
type lane struct {
	urgency Urgency
	load    *load
	// types are the kernel's, read once for the loads that follow each other.
	types *btf.Cache
}

// Queue runs loads: of each urgency one at a time, the namespaces in turn. The caller
// serializes all calls; a goroutine owns only its load.
type Queue struct {
	lanes []*lane
	// ended holds a value when a load ended.
	ended   chan struct{}
	wait    sync.WaitGroup
	clock   func() time.Time
	log     *slog.Logger
	observe func(what Loadable, took time.Duration, err error)
	// Hold is called beside the loop before each load of a line; tests hold loads by it.
	Hold func(line string)
	// results by key, until a reconcile takes them or needs them no more.
	results map[string]result
	// served is the sequence number of the last load of a namespace, and since the
	// one at which a line began to wait. Both hold only what is needed to choose.
	served, since map[string]uint64
	sequence      uint64
}

// NewQueue returns an empty queue. It calls observe, from Collect, for each load that ended
// and that names what it loads.
func NewQueue(clock func() time.Time, log *slog.Logger, observe func(what Loadable, took time.Duration, err error)) *Queue {
	return &Queue{lanes: []*lane{{urgency: ForEnding}, {urgency: ForReplacing}, {urgency: ForNew}}, ended: make(chan struct{}, 1),
		clock: clock, log: log, observe: observe, Hold: func(string) {}, results: map[string]result{}, served: map[string]uint64{}, since: map[string]uint64{}}
}

// Ended yields when a load ended.
func (q *Queue) Ended() <-chan struct{} { return q.ended }

// Current returns the loads in progress, and those that ended since the last Collect.
func (q *Queue) Current() []Request {
	var all []Request
	for _, one := range q.lanes {
		if one.load != nil {
			all = append(all, one.load.request)
		}
	}
	return all
}

// IsLoading reports whether the verifier is at work.
func (q *Queue) IsLoading() bool {
	return slices.ContainsFunc(q.lanes, func(one *lane) bool { return one.load != nil && !one.load.isDone() })
}

// Collect takes over the loads that ended, and reports whether there were any.
func (q *Queue) Collect() bool {
	found := false
	for _, one := range q.lanes {
		now := one.load
		if now == nil || !now.isDone() {
			continue
		}
		if what := now.request.What; what != "" {
			q.observe(what, now.took, now.result.err)
		}
		q.results[now.request.key] = now.result
		one.load, found = nil, true
	}
	return found
}

// Take hands over a result: the caller owns it.
func (q *Queue) Take(key string) { delete(q.results, key) }

// Clear frees all results.
func (q *Queue) Clear() error { return q.keep(nil, nil) }

// Close waits for the loads in progress, which cannot be cancelled, and frees all
// results.
func (q *Queue) Close() error {
	q.wait.Wait()
	q.Collect()
	return q.Clear()
}

// Keep drops the results that the reconcile did not ask for, and the places in the queue
// of what does not wait.
func (q *Queue) Keep(r *Round) error { return q.keep(r.asked, r.Queued) }

func (q *Queue) keep(asked map[string]bool, queue []Request) error {
	var errs []error
	for key, r := range q.results {
		if !asked[key] {
			errs = append(errs, r.close())
			delete(q.results, key)
		}
	}
	waiting, lines := map[string]bool{}, map[string]bool{}
	for _, r := range queue {
		lines[r.Line] = true
		for _, t := range r.Tenants {
			waiting[t] = true
		}
		if _, known := q.since[r.Line]; !known {
			q.sequence++
			q.since[r.Line] = q.sequence
		}
	}
	maps.DeleteFunc(q.since, func(line string, _ uint64) bool { return !lines[line] })
	least := q.leastServed(waiting)
	maps.DeleteFunc(q.served, func(tenant string, at uint64) bool {
		return !waiting[tenant] && !q.runs(tenant) && (len(waiting) == 0 || at <= least)
	})
	return errors.Join(errs...)
}

// leastServed is when the namespace that has waited longest was served. A
// namespace served after it must not be forgotten: it would go first again.
func (q *Queue) leastServed(waiting map[string]bool) uint64 {
	least := q.sequence
	for tenant := range waiting {
		least = min(least, q.served[tenant])
	}
	return least
}

func (q *Queue) runs(tenant string) bool {
	return slices.ContainsFunc(q.Current(), func(r Request) bool { return slices.Contains(r.Tenants, tenant) })
}

// StartNext starts what can start, and returns what still waits. A load that
// could not begin is a result, too, which found reports. Where nothing runs and nothing
// waits, it frees what only loads that follow each other need.
func (q *Queue) StartNext(queue []Request) (waiting []Request, found bool) {
	for _, one := range q.lanes {
		for one.load == nil {
			i := q.next(queue, one.urgency)
			if i < 0 {
				break
			}
			r := queue[i]
			queue = slices.DeleteFunc(queue, func(other Request) bool { return other.key == r.key })
			found = !q.begin(one, r) || found
		}
	}
	q.logSlow()
	if len(q.Current()) == 0 && len(queue) == 0 {
		for _, one := range q.lanes {
			one.types = nil
		}
	}
	return queue, found
}

// next chooses a load of an urgency: of the namespace that was served longest ago, and of its
// loads the one that has waited longest. It is -1 where nothing waits.
func (q *Queue) next(queue []Request, of Urgency) int {
	best := -1
	for i, r := range queue {
		if r.Urgency != of {
			continue
		}
		if best < 0 || cmp.Or(cmp.Compare(q.servedOf(r), q.servedOf(queue[best])),
			cmp.Compare(q.since[r.Line], q.since[queue[best].Line])) < 0 {
			best = i
		}
	}
	return best
}

// servedOf is when the namespace of a request that was served longest ago was.
func (q *Queue) servedOf(r Request) uint64 { return q.served[q.tenantOf(r)] }

// tenantOf is the namespace a load counts for.
func (q *Queue) tenantOf(r Request) string {
	if len(r.Tenants) == 0 {
		return ""
	}
	return slices.MinFunc(r.Tenants, func(x, y string) int { return cmp.Compare(q.served[x], q.served[y]) })
}

// begin starts a load beside the loop, and reports whether it runs.
func (q *Queue) begin(one *lane, r Request) bool {
	q.sequence++
	q.served[q.tenantOf(r)] = q.sequence
	delete(q.since, r.Line)
	run, err := r.Start()
	if err != nil {
		q.results[r.key] = result{err: err}
		return false
	}
	q.log.Debug("load begins", "what", r.Line)
	if one.types == nil {
		one.types = btf.NewCache()
	}
	types, hold, now := one.types, q.Hold, &load{request: r, began: q.clock(), done: make(chan struct{})}
	one.load = now
	q.wait.Go(func() {
		hold(r.Line)
		value, err := run(types)
		if err == nil {
			now.result.value = value
		}
		now.result.err = err
		now.took = q.clock().Sub(now.began)
		close(now.done)
		q.notify()
	})
	return true
}

// notify wakes the loop.
func (q *Queue) notify() {
	select {
	case q.ended <- struct{}{}:
	default:
	}
}

// logSlow logs once a load that takes long. It delays other loads and nothing
// else.
func (q *Queue) logSlow() {
	for _, one := range q.lanes {
		if now := one.load; now != nil && !now.slow && q.clock().Sub(now.began) > slowLoad {
			now.slow = true
			q.log.Warn("the kernel's verifier takes long; other loads wait, and nothing else does", "what", now.request.Line)
		}
	}
}

// Round is what one reconcile asks for.
type Round struct {
	queue *Queue
	asked map[string]bool
	// Queued are the loads that are to start.
	Queued []Request
}

// Begin begins the requests of one reconcile.
func (q *Queue) Begin() *Round { return &Round{queue: q, asked: map[string]bool{}} }

// HasAsked reports whether the reconcile needs any load.
func (r *Round) HasAsked() bool { return len(r.asked) > 0 }

// Take hands over a result: the caller owns it.
func (r *Round) Take(key string) { r.queue.Take(key) }

// Current returns the loads in progress, and those that ended and were not collected.
func (r *Round) Current() []Request { return r.queue.Current() }

// Get returns what was loaded under the key, or queues the load that ask returns and
// fails with ErrLoading. The result stays until it is taken, or until a reconcile does
// not ask for it.
func Get[T io.Closer](r *Round, key string, ask func() (Request, error)) (T, error) {
	var none T
	r.asked[key] = true
	if found, ok := r.queue.results[key]; ok {
		if !errors.Is(found.err, objects.ErrFetching) {
			value, _ := found.value.(T)
			return value, found.err
		}
		// Its object was torn.
		r.Take(key)
	}
	if slices.ContainsFunc(r.queue.Current(), func(one Request) bool { return one.key == key }) {
		return none, ErrLoading
	}
	request, err := ask()
	if err != nil {
		return none, err
	}
	request.key = key
	r.Queued = append(r.Queued, request)
	return none, ErrLoading
}
