package build

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/deadline"
	"github.com/skep-dev/skep/agent/program/jit"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// slowLoad is how long a load takes before it is logged as slow.
const slowLoad = 10 * time.Second

// What one load may take of a processor in the verifier. One that takes more than shortLoad begins anew among the long
// ones, for which no short one waits. A long one that takes more than it may is rejected.
const (
	shortLoad       = 300 * time.Millisecond
	mostOfNamespace = 5 * time.Second
	// mostOfOthers is that of the cluster's loads, and of chains.
	mostOfOthers = time.Minute
)

// shortCost is the greatest bytecode.Work.Cost of a short load: what the kernel replaces takes it about a twentieth of a second
// after the walk, which nothing ends.
const shortCost = 1_000_000

// shortMaking is the greatest bytecode.MapCost of the maps of a short load: about as long as the walk of one may take. What
// fits a node of few CPUs is to be short on one of many, too.
const shortMaking = 5_000_000

// errLong is the error of a short load whose programs have a greater cost.
var errLong = errors.New("it takes the kernel long to load")

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
	// For are the applications that wait for the load, where it brings something in.
	For     []v1alpha1.Identity
	Urgency Urgency
	// Claim is that to the memory for maps; nil where nothing is claimed.
	Claim *plan.Claim
	// What is loaded, for the observer; empty where nothing is.
	What Loadable
	// Start collects on the loop what the load needs, which is no object: thousands
	// may wait.
	Start func() (Run, error)
}

// Run loads beside the loop: it reads the object, owns what it uses, and frees it. Its value counts
// only without an error.
type Run func(Turn) (io.Closer, error)

// Turn is what a load has when its turn comes.
type Turn struct {
	// Types are the kernel's.
	Types *btf.Cache
	// mostCost is the greatest cost of what may be loaded, and mostMaking that of its maps; 0 is any.
	mostCost, mostMaking uint64
	// bound is loader.Prepared.Bound; 0 where a load that takes longer begins anew.
	bound time.Duration
}

// admit fails with errLong where programs of a cost are no short load.
func (t Turn) admit(cost uint64) error {
	if t.mostCost > 0 && cost > t.mostCost {
		return errLong
	}
	return nil
}

// admitMaps fails with errLong where making maps of a cost is no part of a short load.
func (t Turn) admitMaps(cost uint64) error { return Turn{mostCost: t.mostMaking}.admit(cost) }

// Key names exactly what is loaded.
func (r Request) Key() string { return r.key }

// most is what the load may take of a processor in the verifier. A chain has members of several owners, and each of their
// revisions was bounded before.
func (r Request) most() time.Duration {
	if r.What != ChainLoad && slices.ContainsFunc(r.Tenants, func(tenant string) bool { return tenant != "" }) {
		return mostOfNamespace
	}
	return mostOfOthers
}

// lane is a line of loads that waits for no other one.
type lane struct {
	urgency Urgency
	isLong  bool
}

// load is a load that waits, is under way, or has ended. The fields after ticket may be read when
// that is done.
type load struct {
	Request
	ticket *queue.Ticket
	run    Run
	value  io.Closer
	err    error
	took   time.Duration
	// isLong: it took longer than a short load may, and is to begin anew.
	isLong bool
	// since is when it began to wait, or to run.
	since time.Time
}

func (l *load) close() error {
	if l.value == nil {
		return nil
	}
	return l.value.Close()
}

// Loads has revisions and chains built beside the loop: of each urgency a short one and a long one
// at a time, the namespaces in turn. The caller serializes all calls; a goroutine owns only its load.
type Loads struct {
	queues map[lane]*queue.Queue
	// ended holds a value when a load ended.
	ended   chan struct{}
	clock   func() time.Time
	log     *slog.Logger
	observe func(what Loadable, took time.Duration, err error)
	// Hold is called beside the loop before each load of a line; tests hold loads by it.
	Hold func(line string)
	// waiting are the loads that the last reconcile asked for, begun those in progress, and results
	// those that ended, by key, until a reconcile takes them or needs them no more.
	waiting, begun, results map[string]*load
	// long are the keys of loads that were found to be long, until no reconcile asks for them.
	long map[string]bool
	// types are the kernel's, read once for the loads that follow each other.
	types map[lane]*btf.Cache
	// within bounds a load, see deadline.Within; unbounded says once that the kernel does not.
	within           func(most time.Duration, f func()) (isOver bool, err error)
	asked, unbounded sync.Once
}

// NewLoads returns no loads. It calls observe, from Collect, for each load that ended and that
// names what it loads.
func NewLoads(clock func() time.Time, log *slog.Logger, observe func(what Loadable, took time.Duration, err error)) *Loads {
	l := &Loads{
		ended: make(chan struct{}, 1), clock: clock, log: log, observe: observe, Hold: func(string) {}, queues: map[lane]*queue.Queue{},
		waiting: map[string]*load{}, begun: map[string]*load{}, results: map[string]*load{}, long: map[string]bool{}, types: map[lane]*btf.Cache{},
		within: deadline.Within,
	}
	wake := func() {
		select {
		case l.ended <- struct{}{}:
		default:
		}
	}
	for _, u := range []Urgency{ForEnding, ForReplacing, ForNew} {
		for _, isLong := range []bool{false, true} {
			l.queues[lane{u, isLong}] = queue.New(queue.Options{Concurrent: 1, OnCall: true, Slow: slowLoad, SlowCounts: true, Log: log, Wake: wake,
				SlowMessage: "a load takes long; other long loads wait, and nothing else does"})
		}
	}
	return l
}

// Ended yields when a load ended.
func (l *Loads) Ended() <-chan struct{} { return l.ended }

// HasEnded reports whether a load ended since the last Collect.
func (l *Loads) HasEnded() bool {
	for _, one := range l.begun {
		if one.ticket.IsDone() {
			return true
		}
	}
	return false
}

// Current returns the loads in progress, and those that ended since the last Collect.
func (l *Loads) Current() []Request {
	var all []Request
	for _, one := range l.begun {
		all = append(all, one.Request)
	}
	return all
}

// Pending is a load under way, or one that waits for its turn.
type Pending struct {
	For       []v1alpha1.Identity
	Since     time.Time
	IsWaiting bool
}

// List returns the loads of applications, those under way first.
func (l *Loads) List() []Pending {
	var all []Pending
	for _, loads := range []map[string]*load{l.begun, l.waiting} {
		for key, one := range loads {
			if len(one.For) > 0 && !one.ticket.IsDone() {
				all = append(all, Pending{For: one.For, Since: one.since, IsWaiting: l.waiting[key] != nil})
			}
		}
	}
	slices.SortFunc(all, func(a, b Pending) int {
		switch {
		case a.IsWaiting != b.IsWaiting && b.IsWaiting:
			return -1
		case a.IsWaiting != b.IsWaiting:
			return 1
		}
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.For[0].String(), b.For[0].String()))
	})
	return all
}

// IsLoading reports whether the verifier is at work.
func (l *Loads) IsLoading() bool {
	for _, one := range l.begun {
		if !one.ticket.IsDone() {
			return true
		}
	}
	return false
}

// Collect takes over the loads that ended, and reports whether there were any.
func (l *Loads) Collect() (found bool) {
	// Before any is looked at: one that ends later is found by the next Collect.
	select {
	case <-l.ended:
	default:
	}
	for key, one := range l.begun {
		if !one.ticket.IsDone() {
			continue
		}
		found = true
		delete(l.begun, key)
		if one.isLong {
			// The next reconcile that needs it asks again.
			l.long[key] = true
			continue
		}
		if one.What != "" {
			l.observe(one.What, one.took, one.err)
		}
		l.results[key] = one
	}
	return found
}

// Close waits for the loads in progress, which cannot be cancelled, and frees all results.
func (l *Loads) Close() error {
	l.Enqueue(nil)
	for _, q := range l.queues {
		q.Wait()
	}
	l.Collect()
	return l.Keep(l.Begin())
}

// Keep drops the results that the reconcile did not ask for.
func (l *Loads) Keep(r *Round) error {
	var errs []error
	for key, one := range l.results {
		if !r.asked[key] {
			errs = append(errs, one.close())
			delete(l.results, key)
		}
	}
	maps.DeleteFunc(l.long, func(key string, _ bool) bool { return !r.asked[key] })
	return errors.Join(errs...)
}

// Enqueue has these loads wait for their turns, in the places of their lines, and no other ones any more.
func (l *Loads) Enqueue(all []Request) {
	places, since := map[string]uint64{}, map[string]time.Time{}
	for _, one := range l.waiting {
		one.ticket.Cancel()
		places[one.Line], since[one.Line] = one.ticket.Place(), one.since
	}
	clear(l.waiting)
	for _, r := range all {
		if l.waiting[r.key] == nil {
			one := l.add(r, places[r.Line])
			if one.since = since[r.Line]; one.since.IsZero() {
				one.since = l.clock()
			}
			l.waiting[r.key] = one
		}
	}
}

// add has a load wait for its turn.
func (l *Loads) add(r Request, place uint64) *load {
	one, in, hold := &load{Request: r}, lane{r.Urgency, l.long[r.key]}, l.Hold
	var types *btf.Cache
	one.ticket = l.queues[in].Add(queue.Job{
		What: r.Line, Owners: r.Tenants, Place: place, Urgent: true,
		Prepare: func() bool {
			if one.run, one.err = r.Start(); one.err != nil {
				return false
			}
			l.log.Debug("load begins", "what", r.Line)
			if l.types[in] == nil {
				l.types[in] = btf.NewCache()
			}
			types = l.types[in]
			return true
		},
		Run: func(context.Context) bool {
			began := l.clock()
			hold(r.Line)
			l.run(one, in, types)
			one.took = l.clock().Sub(began)
			return true
		},
	})
	return one
}

// run has the kernel load, for as long as the lane allows it. It runs beside the loop.
func (l *Loads) run(one *load, in lane, types *btf.Cache) {
	most, turn := shortLoad, Turn{Types: types, mostCost: shortCost, mostMaking: shortMaking}
	if in.isLong {
		most = one.most()
		turn.mostCost, turn.mostMaking, turn.bound = 0, 0, most
	}
	l.asked.Do(loader.AskOnce)
	// So that its probe takes nothing of the load's time.
	jit.Blinds()
	isOver, err := l.within(most, func() {
		if value, err := one.run(turn); err == nil {
			one.value = value
		} else {
			one.err = err
		}
	})
	if err != nil {
		l.unbounded.Do(func() {
			l.log.Warn("a load that takes the kernel's verifier long cannot be ended, and other loads wait for it", "error", err)
		})
	}
	isOver = isOver && errors.Is(one.err, unix.ETIME)
	switch {
	case errors.Is(one.err, errLong), isOver && !in.isLong:
		one.isLong, one.err = true, nil
	case !isOver:
	default:
		one.err = loader.TooSlow(one.err, most)
	}
}

// StartNext starts what can start, and returns how many loads still wait. A load that
// could not begin is a result, too, which found reports. Where nothing runs and nothing
// waits, it frees what only loads that follow each other need.
func (l *Loads) StartNext() (waiting int, found bool) {
	for _, q := range l.queues {
		q.Next()
	}
	for key, one := range l.waiting {
		switch {
		case !one.ticket.HasBegun():
			continue
		case one.run == nil:
			l.results[key], found = one, true
		default:
			l.begun[key], one.since = one, l.clock()
		}
		delete(l.waiting, key)
	}
	if len(l.begun)+len(l.waiting) == 0 {
		clear(l.types)
	}
	return len(l.waiting), found
}

// Round is what one reconcile asks for.
type Round struct {
	loads *Loads
	asked map[string]bool
	// Queued are the loads that are to start.
	Queued []Request
}

// Begin begins the requests of one reconcile.
func (l *Loads) Begin() *Round { return &Round{loads: l, asked: map[string]bool{}} }

// HasAsked reports whether the reconcile needs any load.
func (r *Round) HasAsked() bool { return len(r.asked) > 0 }

// Take hands over a result: the caller owns it.
func (r *Round) Take(key string) { delete(r.loads.results, key) }

// Current returns the loads in progress, and those that ended and were not collected.
func (r *Round) Current() []Request { return r.loads.Current() }

// Get returns what was loaded under the key, or queues the load that ask returns and
// fails with ErrLoading. The result stays until it is taken, or until a reconcile does
// not ask for it.
func Get[T io.Closer](r *Round, key string, ask func() (Request, error)) (T, error) {
	var none T
	r.asked[key] = true
	if found := r.loads.results[key]; found != nil {
		if !errors.Is(found.err, objects.ErrFetching) {
			value, _ := found.value.(T)
			return value, found.err
		}
		// Its object was torn.
		r.Take(key)
	}
	if r.loads.begun[key] != nil {
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
