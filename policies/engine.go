package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skep-dev/skep/clock"
)

// DefaultMemory is how much memory compiling or evaluating one policy may take, in
// bytes.
const DefaultMemory = 64 << 20

const (
	// compileCPU and compileTimeout bound the time of compiling one policy: that
	// of CPUs, and that of the clock, which a busy machine stretches.
	compileCPU     = 5 * time.Second
	compileTimeout = 20 * time.Second
	// tenantCompiles and adminCompiles are how many policies of namespaces, and
	// how many of the cluster, are compiled at once. A namespace compiles one.
	tenantCompiles = 2
	adminCompiles  = 1
	// defaultEvaluators is that of EngineOptions.
	defaultEvaluators = 2
	// maxTries is how many more workers are tried where one ended by no limit: as
	// many as may have been ended while they waited for work.
	maxTries = 4
	// idleTime is how long a worker waits for work before it is ended.
	idleTime = time.Minute
)

// Documents of more than largeBytes are decided one at a time, each in a worker of its
// own: the engine takes fifty times as much of the memory as a document has bytes.
// Nearly all have a few KiB, and wait for none where policies of the cluster are asked.
const (
	largeBytes = 128 << 10
	// memoryFactor is how much memory an evaluation may take besides for each byte
	// of its document.
	memoryFactor = 64
)

// EngineOptions are what an Engine works with; the zero value is ready.
type EngineOptions struct {
	// Evaluators is how many evaluations by policies of the cluster run at once, and
	// how many by policies of namespaces; 0 means two. A namespace has half of each.
	Evaluators int
	// MemoryBytes is how much memory compiling or evaluating one policy may take; 0
	// means DefaultMemory.
	MemoryBytes int64
	// Now is the clock by which what exceeded a limit is tried again; nil means
	// time.Now.
	Now func() time.Time
}

// Engine does all that is Rego in confined child processes: it parses, compiles,
// tests and evaluates policies there, and nothing of it in this process. A policy
// that takes more memory or time than it may has its child ended, and no other
// policy's answer changes. It is safe for concurrent use.
type Engine struct {
	memory int64
	// patience is how long a compile may take by the clock.
	patience time.Duration
	// kept is how much memory a worker may keep in compiled policies.
	kept      int64
	now       func() time.Time
	penalties penalties
	pools     pools
	proofs    proofs
	// baseline is that profile once it is compiled.
	baseline atomic.Pointer[compiled]

	// mu guards what follows, and the idle workers of the pools.
	mu     sync.Mutex
	closed bool
	busy   map[*worker]bool
	// dropped counts the workers that ended before they were released.
	dropped int
}

// pools are the workers by what they do, and for whom: policies of namespaces are
// compiled and evaluated in others than those of the cluster, so that neither their
// time nor their number holds those up.
type pools struct {
	// proveCluster and proveTenants compile what nobody compiled before, and may have
	// to be ended.
	proveCluster, proveTenants *pool
	// cluster and tenants evaluate, and know policies; the large ones evaluate large
	// documents. Of namespaces, a large document takes all places.
	cluster, clusterLarge, tenants, tenantsLarge *pool
}

func newPools(evaluators int) pools {
	half := max(evaluators/2, 1)
	p := pools{
		proveCluster: newPool(adminCompiles, adminCompiles), proveTenants: newPool(tenantCompiles, 1),
		cluster: newPool(evaluators, half), clusterLarge: newPool(1, 1), tenants: newPool(evaluators, half),
	}
	p.tenantsLarge = &pool{places: p.tenants.places, weight: int64(evaluators), share: 1}
	p.clusterLarge.fresh, p.tenantsLarge.fresh = true, true
	p.tenantsLarge.beside = p.tenants
	return p
}

// all lists the pools that keep workers.
func (p *pools) all() []*pool {
	return []*pool{p.proveCluster, p.proveTenants, p.cluster, p.tenants}
}

// NewEngine returns an Engine, which starts children when they are needed. Close
// ends them.
func NewEngine(o EngineOptions) *Engine {
	o.Now = clock.OrSystem(o.Now)
	return &Engine{
		memory: cmp.Or(o.MemoryBytes, DefaultMemory), kept: keptBytes, patience: compileTimeout, now: o.Now,
		penalties: penalties{now: o.Now}, pools: newPools(cmp.Or(o.Evaluators, defaultEvaluators)),
		busy: map[*worker]bool{},
	}
}

// provers compile policies of a namespace, or of the cluster where that is empty.
func (e *Engine) provers(namespace string) *pool {
	if namespace == "" {
		return e.pools.proveCluster
	}
	return e.pools.proveTenants
}

// evaluators evaluate policies of the cluster, or a namespace's own.
func (e *Engine) evaluators(own, large bool) *pool {
	switch {
	case own && large:
		return e.pools.tenantsLarge
	case own:
		return e.pools.tenants
	case large:
		return e.pools.clusterLarge
	}
	return e.pools.cluster
}

// errClosed says that an Engine is used after its Close.
var errClosed = errors.New("the engine for policies is closed")

// Close ends all children. What they worked on is an error.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	var idle []*worker
	for _, p := range e.pools.all() {
		idle = append(idle, p.idle...)
		p.idle = nil
	}
	for w := range e.busy {
		w.kill()
	}
	e.mu.Unlock()
	for _, w := range idle {
		w.end()
	}
}

// take returns a worker of a pool that waits, or starts one, which may take so much
// memory at once. release gives it back.
func (e *Engine) take(p *pool, memory int64) (*worker, error) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, errClosed
	}
	if n := len(p.idle); n > 0 {
		w := p.idle[n-1]
		p.idle = p.idle[:n-1]
		e.busy[w] = true
		e.mu.Unlock()
		return w, nil
	}
	var ends []*worker
	if p.beside != nil {
		ends, p.beside.idle = p.beside.idle, nil
	}
	e.mu.Unlock()
	for _, w := range ends {
		w.end()
	}
	w, err := startWorker(start{MemoryBytes: max(memory, e.memory+memoryFactor*largeBytes), KeptBytes: e.kept})
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		w.end()
		return nil, errClosed
	}
	e.busy[w] = true
	return w, nil
}

// release has a worker wait for work in its pool, and ends all that waited long.
func (e *Engine) release(p *pool, w *worker) {
	now := e.now()
	w.used = now
	e.mu.Lock()
	delete(e.busy, w)
	var ends []*worker
	if e.closed || p.fresh {
		ends = append(ends, w)
	} else {
		p.idle = append(p.idle, w)
	}
	for _, p := range e.pools.all() {
		n := slices.IndexFunc(p.idle, func(w *worker) bool { return now.Sub(w.used) <= idleTime })
		if n < 0 {
			n = len(p.idle)
		}
		ends, p.idle = append(ends, p.idle[:n]...), slices.Clone(p.idle[n:])
	}
	e.mu.Unlock()
	for _, w := range ends {
		w.end()
	}
}

// drop forgets a worker that ended.
func (e *Engine) drop(w *worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.busy, w)
	e.dropped++
}

// prove has a child compile a policy, unless it is known what that shows. Where
// compiling exceeds a limit the proof says so, and it is not tried again for a
// while.
func (e *Engine) prove(ctx context.Context, namespace string, prog program, key string) (proof, error) {
	if known, ok := e.proofs.get(key); ok {
		return known, nil
	}
	pool := e.provers(namespace)
	leave, err := pool.enter(ctx, namespace)
	if err != nil {
		return proof{}, fmt.Errorf("wait to compile policy %s: %w", prog.Policy, err)
	}
	type outcome struct {
		shown proof
		err   error
	}
	done := make(chan outcome, 1)
	// It goes on where the caller gives up, so that the next finds what it showed.
	go func() {
		defer leave()
		shown, err := e.proveNow(pool, key, prog)
		done <- outcome{shown, err}
	}()
	select {
	case <-ctx.Done():
		return proof{}, fmt.Errorf("compile policy %s: %w", prog.Policy, ctx.Err())
	case o := <-done:
		return o.shown, o.err
	}
}

// proveNow compiles in a place of a pool.
func (e *Engine) proveNow(pool *pool, key string, prog program) (proof, error) {
	// Another may have compiled it meanwhile.
	if known, ok := e.proofs.get(key); ok {
		return known, nil
	}
	broken := func(what string) proof {
		return proof{Errors: []*CompileError{{Policy: prog.Policy, File: prog.File, Line: 1, Column: 1, Message: what}}}
	}
	if v, held := e.penalties.holds(key); held {
		return broken(v.Denied[0].Message), nil
	}
	died := "died " + key
	if v, held := e.penalties.holds(died); held {
		return proof{}, errors.New(v.Denied[0].Message)
	}
	var shown proof
	t := task{Prove: &prog, Bounds: bounds{MemoryBytes: e.memory, CPU: compileCPU}}
	err := e.try(pool, t, e.patience, func(a answer) error {
		if a.Proof != nil {
			shown = *a.Proof
		}
		return nil
	})
	var ended *endedError
	switch {
	case err == nil:
		e.penalties.lift(died)
		e.proofs.put(key, shown)
		return shown, nil
	case errors.As(err, &ended) && ended.exhausted():
		what := "compiling it " + exceeded(ended, e.memory, e.patience)
		e.penalties.add(key, verdict{Denied: []Reason{{Message: what}}}, memoryPenalty)
		return broken(what), nil
	}
	err = fmt.Errorf("compile policy %s: %w", prog.Policy, err)
	if ended != nil && !ended.OutOfThreads() {
		// It may be the policy's fault, so it is not tried in a loop.
		e.penalties.add(died, verdict{Denied: []Reason{{Message: err.Error()}}}, memoryPenalty)
	}
	return proof{}, err
}

// errAnswer says that a child answers what was not asked.
var errAnswer = errors.New("ask the worker for policies: it answers something else")

// try asks a worker that compiles, and another one where it ended by no limit:
// somebody else ended it.
func (e *Engine) try(p *pool, t task, each time.Duration, take func(answer) error) error {
	var ended *endedError
	for tries := 0; ; tries++ {
		w, err := e.take(p, t.Bounds.MemoryBytes)
		if err != nil {
			return err
		}
		err = w.ask(t, each, func(a answer) (time.Duration, error) { return 0, take(a) })
		if err == nil {
			e.release(p, w)
			return nil
		}
		e.drop(w)
		if tries >= maxTries || !errors.As(err, &ended) || ended.exhausted() {
			return err
		}
	}
}

// exceeded says which limit a child exceeded, and what to do.
func exceeded(by *endedError, memory int64, timeout time.Duration) string {
	switch {
	case by.OutOfMemory():
		return fmt.Sprintf("exceeded its memory limit of %d MiB; make it smaller: build no large strings and no values that hold each other many times over",
			memory>>20)
	case by.StackOverflow():
		return "nests values too deeply; make it flatter"
	}
	if by.OutOfTime() {
		return fmt.Sprintf("exceeded its time limit of %s of CPU; make it simpler", compileCPU)
	}
	return fmt.Sprintf("was not done within %s; make it simpler, or try again on a machine that has less to do", timeout)
}
