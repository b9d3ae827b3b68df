package agent

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/plan"
)

// The bounds of a turn. A load cannot be cancelled while the verifier works, so
// every load runs beside the loop, and a turn waits only a little for it.
const (
	// turnGrace is how long a turn waits for objects and loads on their way.
	turnGrace = 250 * time.Millisecond
	// loadSlice is how long loads follow each other before the kernel is
	// observed again.
	loadSlice = 50 * time.Millisecond
	// endingPause is how long a turn waits before it looks again for links that the
	// kernel ends in the background.
	endingPause = 20 * time.Millisecond
	// slowLoad is how long a load takes before it is logged as slow.
	slowLoad = 10 * time.Second
)

// errLoading: the kernel's verifier has not checked it yet.
var errLoading = errors.New("it waits for the kernel's verifier")

// isPending reports whether an error only says that something is on its way, or
// has to wait for what is.
func isPending(err error) bool {
	return errors.Is(err, errFetching) || errors.Is(err, errLoading) || errors.Is(err, errQueued)
}

// urgency is what a load is for. Loads of one urgency wait for no others.
type urgency int

const (
	// forNew loads bring something in, or change it.
	forNew urgency = iota
	// forReplacing loads take the place of a program that may not run any more.
	forReplacing
	// forEnding loads are chains without a member that is to go, and nothing else.
	forEnding
)

// request is one load that a pass needs.
type request struct {
	// key names exactly what is loaded, and line what waits for it: a new
	// version of it keeps the place in the queue.
	key, line string
	// tenants are the namespaces of the applications that wait for the load.
	tenants []string
	urgency urgency
	// claim is that to the memory for maps; nil where nothing is claimed.
	claim *plan.Claim
	// what is loaded, for the observer; empty where nothing is.
	what Loadable
	// start collects on the loop what the load needs, which is no object: thousands
	// may wait. The function it returns runs beside the loop, reads the object, owns
	// what it uses, and frees it.
	start func() (func(*btf.Cache) (io.Closer, error), error)
}

// load is one load in progress. The fields after done may be read when it is
// closed.
type load struct {
	request request
	began   time.Time
	slow    bool
	done    chan struct{}
	result  loadResult
	took    time.Duration
}

// loadResult is what came of a load.
type loadResult struct {
	value io.Closer
	err   error
}

// lane runs one load at a time.
type lane struct {
	urgency urgency
	load    *load
	// types are the kernel's, read once for the loads that follow each other.
	types *btf.Cache
}

// loads runs the kernel's verifier beside the loop: of each urgency one load at a
// time, the namespaces in turn. It is guarded by Agent.work; a goroutine owns only its
// load.
type loads struct {
	lanes []*lane
	// ended holds a value when a load ended.
	ended chan struct{}
	wait  sync.WaitGroup
	clock func() time.Time
	log   *slog.Logger
	// results by key, until a pass takes them or needs them no more.
	results map[string]loadResult
	// served is the sequence number of the last load of a namespace, and since the
	// one at which a line began to wait. Both hold only what is needed to choose.
	served, since map[string]uint64
	sequence      uint64
}

func newLoads(clock func() time.Time, log *slog.Logger) *loads {
	return &loads{lanes: []*lane{{urgency: forEnding}, {urgency: forReplacing}, {urgency: forNew}}, ended: make(chan struct{}, 1), clock: clock, log: log, results: map[string]loadResult{},
		served: map[string]uint64{}, since: map[string]uint64{}}
}

// current are the loads in progress.
func (l *loads) current() []request {
	var all []request
	for _, one := range l.lanes {
		if one.load != nil {
			all = append(all, one.load.request)
		}
	}
	return all
}

func (l *loads) busy() bool { return len(l.current()) > 0 }

// inProgress reports whether the load with the key runs.
func (l *loads) inProgress(key string) bool {
	return slices.ContainsFunc(l.current(), func(r request) bool { return r.key == key })
}

// collect takes over the loads that ended, and reports whether there were any.
func (l *loads) collect(o Observer) bool {
	found := false
	for _, one := range l.lanes {
		if one.load == nil {
			continue
		}
		select {
		case <-one.load.done:
			if what := one.load.request.what; what != "" {
				o.Loaded(what, one.load.took, one.load.result.err)
			}
			l.results[one.load.request.key] = one.load.result
			one.load, found = nil, true
		default:
		}
	}
	return found
}

// take hands over a result: the caller owns it.
func (l *loads) take(key string) { delete(l.results, key) }

// keep drops the results that no application needs any more, and the places in
// the queue of what does not wait.
func (l *loads) keep(asked map[string]bool, queue []request) error {
	var errs []error
	for key, r := range l.results {
		if !asked[key] {
			errs = append(errs, r.close())
			delete(l.results, key)
		}
	}
	waiting, lines := map[string]bool{}, map[string]bool{}
	for _, r := range queue {
		lines[r.line] = true
		for _, t := range r.tenants {
			waiting[t] = true
		}
		if _, known := l.since[r.line]; !known {
			l.sequence++
			l.since[r.line] = l.sequence
		}
	}
	maps.DeleteFunc(l.since, func(line string, _ uint64) bool { return !lines[line] })
	least := l.leastServed(waiting)
	maps.DeleteFunc(l.served, func(tenant string, at uint64) bool {
		return !waiting[tenant] && !l.runs(tenant) && (len(waiting) == 0 || at <= least)
	})
	return errors.Join(errs...)
}

// leastServed is when the namespace that has waited longest was served. A
// namespace served after it must not be forgotten: it would go first again.
func (l *loads) leastServed(waiting map[string]bool) uint64 {
	least := l.sequence
	for tenant := range waiting {
		least = min(least, l.served[tenant])
	}
	return least
}

func (l *loads) runs(tenant string) bool {
	return slices.ContainsFunc(l.current(), func(r request) bool { return slices.Contains(r.tenants, tenant) })
}

func (r loadResult) close() error {
	if r.value == nil {
		return nil
	}
	return r.value.Close()
}

// startNext starts what can start, and returns what goes on waiting. A load that
// could not begin is a result, too, which found reports.
func (l *loads) startNext(queue []request) (rest []request, found bool) {
	for _, one := range l.lanes {
		for one.load == nil {
			i := l.next(queue, one.urgency)
			if i < 0 {
				break
			}
			r := queue[i]
			queue = slices.DeleteFunc(queue, func(other request) bool { return other.key == r.key })
			found = !l.begin(one, r) || found
		}
	}
	return queue, found
}

// next chooses a load of an urgency: of the namespace that was served longest ago, and of its
// loads the one that has waited longest. It is -1 where nothing waits.
func (l *loads) next(queue []request, of urgency) int {
	best := -1
	for i, r := range queue {
		if r.urgency != of {
			continue
		}
		if best < 0 || cmp.Or(cmp.Compare(l.servedOf(r), l.servedOf(queue[best])),
			cmp.Compare(l.since[r.line], l.since[queue[best].line])) < 0 {
			best = i
		}
	}
	return best
}

// servedOf is when the namespace of a request that was served longest ago was.
func (l *loads) servedOf(r request) uint64 { return l.served[l.tenantOf(r)] }

// tenantOf is the namespace a load counts for.
func (l *loads) tenantOf(r request) string {
	if len(r.tenants) == 0 {
		return ""
	}
	return slices.MinFunc(r.tenants, func(x, y string) int { return cmp.Compare(l.served[x], l.served[y]) })
}

// begin starts a load beside the loop, and reports whether it runs.
func (l *loads) begin(one *lane, r request) bool {
	l.sequence++
	l.served[l.tenantOf(r)] = l.sequence
	delete(l.since, r.line)
	run, err := r.start()
	if err != nil {
		l.results[r.key] = loadResult{err: err}
		return false
	}
	l.log.Debug("load begins", "what", r.line)
	if one.types == nil {
		one.types = btf.NewCache()
	}
	types, now := one.types, &load{request: r, began: l.clock(), done: make(chan struct{})}
	one.load = now
	l.wait.Go(func() {
		now.result.value, now.result.err = run(types)
		now.took = l.clock().Sub(now.began)
		close(now.done)
		l.notify()
	})
	return true
}

// notify wakes the loop.
func (l *loads) notify() {
	select {
	case l.ended <- struct{}{}:
	default:
	}
}

// rest frees what is only of use while loads follow each other.
func (l *loads) rest() {
	for _, one := range l.lanes {
		if one.load == nil {
			one.types = nil
		}
	}
}

// stop waits for the loads in progress, which cannot be cancelled, and frees all
// results.
func (l *loads) stop(o Observer) error {
	l.wait.Wait()
	l.collect(o)
	return l.keep(nil, nil)
}

// loaded returns what was loaded under the request's key, or queues the load and
// fails with errLoading. The result stays until it is taken, or until a pass
// does not ask for it.
func (p *pass) loaded(key string, ask func() (request, error)) (io.Closer, error) {
	p.asked[key] = true
	if r, ok := p.loads.results[key]; ok {
		if !errors.Is(r.err, errFetching) {
			return r.value, r.err
		}
		// Its object was torn.
		p.loads.take(key)
	}
	if p.loads.inProgress(key) {
		return nil, errLoading
	}
	r, err := ask()
	if err != nil {
		return nil, err
	}
	r.key = key
	p.queue = append(p.queue, r)
	return nil, errLoading
}

// advance starts the loads that a pass needs, one after the other, and waits for
// them and for objects until the context ends. It reports whether another pass
// has something to do. An intent or an interface that comes ends the wait at once.
func (a *Agent) advance(ctx context.Context, p *pass) bool {
	if p.observed {
		if err := a.loads.keep(p.asked, p.queue); err != nil {
			a.opts.Log.Error("free a load that is not needed any more", "error", err)
		}
	}
	slice := a.opts.Clock().Add(loadSlice)
	queue, fresh := p.queue, false
	for {
		var found bool
		queue, found = a.loads.startNext(queue)
		fresh = fresh || found
		a.loads.logSlow()
		if !a.loads.busy() {
			if len(queue) == 0 {
				a.loads.rest()
			}
			if fresh || !p.fetching && !p.ending {
				return fresh
			}
		}
		var again <-chan time.Time
		if p.ending {
			again = time.After(endingPause)
		}
		select {
		case <-a.loads.ended:
			fresh = a.loads.collect(a.opts.Observer) || fresh
			if fresh && (len(queue) == 0 || !a.opts.Clock().Before(slice)) {
				return true
			}
		case <-a.wake:
			return true
		case <-again:
			return true
		case <-ctx.Done():
			return fresh
		}
	}
}

// logSlow logs once a load that takes long. It delays other loads and nothing
// else.
func (l *loads) logSlow() {
	for _, one := range l.lanes {
		if now := one.load; now != nil && !now.slow && l.clock().Sub(now.began) > slowLoad {
			now.slow = true
			l.log.Warn("the kernel's verifier takes long; other loads wait, and nothing else does", "what", now.request.line)
		}
	}
}
