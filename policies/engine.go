package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/skep-dev/skep/share"
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
	adminCompiles  = 2
	// maxTries is how many more workers are tried where one ended by no limit: as
	// many as may have been ended while they waited for work.
	maxTries = 4
	// maxProofs bounds how many policies' proofs are remembered.
	maxProofs = 4096
	// keptBytes is how much memory a worker keeps in compiled policies: a small one
	// takes a quarter of a MiB, one of 256 KiB eleven.
	keptBytes = 64 << 20
	// idleTime is how long a worker waits for work before it is ended.
	idleTime = time.Minute
)

// Documents of more than largeBytes are decided largeAtOnce at a time, each in a
// worker of its own: the engine takes fifty times as much of the memory as a
// document has bytes. Nearly all have a few KiB, and wait for none.
const (
	largeBytes  = 128 << 10
	largeAtOnce = 2
	// memoryFactor is how much memory an evaluation may take besides for each byte
	// of its document.
	memoryFactor = 64
)

// EngineOptions are what an Engine works with; the zero value is ready.
type EngineOptions struct {
	// Evaluators is how many evaluations run at once; 0 means two. A namespace has half
	// of them.
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
	evaluators int
	memory     int64
	// patience is how long a compile may take by the clock.
	patience time.Duration
	// kept is how much memory a worker may keep in compiled policies.
	kept        int64
	now         func() time.Time
	turns       share.Shares
	evaluations *semaphore.Weighted
	tenants     *semaphore.Weighted
	admins      *semaphore.Weighted
	// large counts the large documents that are being decided.
	large     *semaphore.Weighted
	penalties penalties

	// mu guards what follows.
	mu     sync.Mutex
	closed bool
	// idle are the workers that wait for work, the one that worked last at the
	// end; busy are the others.
	idle map[kind][]*worker
	busy map[*worker]bool
	// dropped counts the workers that ended before they were released.
	dropped int
	// proofs remembers what compiled programs showed, by their keys.
	proofs map[string]proof
}

// kind is what a worker is kept for. A worker that compiles what nobody proved may
// have to be ended, and one that evaluates knows policies: so they are apart.
type kind string

const (
	proves    kind = "prove"
	evaluates kind = "evaluate"
)

// NewEngine returns an Engine, which starts children when they are needed. Close
// ends them.
func NewEngine(o EngineOptions) *Engine {
	evaluators := cmp.Or(o.Evaluators, 2)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Engine{
		evaluators: evaluators, memory: cmp.Or(o.MemoryBytes, DefaultMemory), kept: keptBytes, patience: compileTimeout, now: o.Now,
		evaluations: semaphore.NewWeighted(int64(evaluators)), large: semaphore.NewWeighted(largeAtOnce),
		tenants: semaphore.NewWeighted(tenantCompiles), admins: semaphore.NewWeighted(adminCompiles),
		penalties: penalties{now: o.Now},
		idle:      map[kind][]*worker{}, busy: map[*worker]bool{}, proofs: map[string]proof{},
	}
}

// errClosed says that an Engine is used after its Close.
var errClosed = errors.New("the engine for policies is closed")

// Close ends all children. What they worked on is an error.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	idle := slices.Concat(e.idle[proves], e.idle[evaluates])
	clear(e.idle)
	for w := range e.busy {
		w.kill()
	}
	e.mu.Unlock()
	for _, w := range idle {
		w.end()
	}
}

// take returns a worker that waits, or starts one. release gives it back.
func (e *Engine) take(k kind) (*worker, error) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, errClosed
	}
	if n := len(e.idle[k]); n > 0 {
		w := e.idle[k][n-1]
		e.idle[k] = e.idle[k][:n-1]
		e.busy[w] = true
		e.mu.Unlock()
		return w, nil
	}
	e.mu.Unlock()
	return e.start(e.memory + memoryFactor*largeBytes)
}

// start starts a worker that may take so much memory.
func (e *Engine) start(memory int64) (*worker, error) {
	w, err := startWorker(start{MemoryBytes: memory, KeptBytes: e.kept})
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

// release has a worker wait for work, and ends those that waited long.
func (e *Engine) release(k kind, w *worker) {
	w.used = e.now()
	e.mu.Lock()
	delete(e.busy, w)
	var stale []*worker
	if e.closed {
		stale = append(stale, w)
	} else {
		waiting := append(slices.Clone(e.idle[k]), w)
		n := slices.IndexFunc(waiting, func(w *worker) bool { return e.now().Sub(w.used) <= idleTime })
		stale, e.idle[k] = slices.Clone(waiting[:max(n, 0)]), slices.Clone(waiting[max(n, 0):])
	}
	e.mu.Unlock()
	for _, w := range stale {
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

// turn waits for a turn of a namespace, and then for one of all. leave gives both
// back.
func (e *Engine) turn(ctx context.Context, name string, most int64, all *semaphore.Weighted) (leave func(), err error) {
	give, err := e.turns.Take(ctx, name, 1, most)
	if err != nil {
		return nil, err
	}
	if err := all.Acquire(ctx, 1); err != nil {
		give()
		return nil, err
	}
	return func() { all.Release(1); give() }, nil
}

// prove has a child compile a policy, unless it is known what that shows. Where
// compiling exceeds a limit the proof says so, and it is not tried again for a
// while.
func (e *Engine) prove(ctx context.Context, namespace string, prog program, key string) (proof, error) {
	if known, ok := e.proof(key); ok {
		return known, nil
	}
	all := e.tenants
	most := int64(1)
	if namespace == "" {
		all, most = e.admins, adminCompiles
	}
	leave, err := e.turn(ctx, "compile "+namespace, most, all)
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
		shown, err := e.proveNow(key, prog)
		done <- outcome{shown, err}
	}()
	select {
	case <-ctx.Done():
		return proof{}, fmt.Errorf("compile policy %s: %w", prog.Policy, ctx.Err())
	case o := <-done:
		return o.shown, o.err
	}
}

// proveNow compiles in the turn of a namespace.
func (e *Engine) proveNow(key string, prog program) (proof, error) {
	// Another may have compiled it meanwhile.
	if known, ok := e.proof(key); ok {
		return known, nil
	}
	broken := func(what string) proof {
		return proof{Errors: []*CompileError{{Policy: prog.Policy, File: prog.File, Line: 1, Column: 1, Message: what}}}
	}
	if v, held := e.penalties.holds(key); held {
		return broken(v.Denied[0].Message), nil
	}
	var shown proof
	t := task{Prove: &prog, Bounds: bounds{MemoryBytes: e.memory, CPU: compileCPU}}
	err := e.try(t, e.patience, func(a answer) error {
		if a.Proof != nil {
			shown = *a.Proof
		}
		return nil
	})
	var ended *endedError
	switch {
	case err == nil:
		e.remember(key, shown)
		return shown, nil
	case errors.As(err, &ended) && ended.exhausted():
		what := "compiling it " + exceeded(ended, e.memory, e.patience)
		e.penalties.add(key, verdict{Denied: []Reason{{Message: what}}}, memoryPenalty)
		return broken(what), nil
	}
	return proof{}, fmt.Errorf("compile policy %s: %w", prog.Policy, err)
}

// proof is what a program showed before.
func (e *Engine) proof(key string) (proof, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	known, ok := e.proofs[key]
	return known, ok
}

// errAnswer says that a child answers what was not asked.
var errAnswer = errors.New("ask the worker for policies: it answers something else")

// try asks a worker that compiles, and another one where it ended by no limit:
// somebody else ended it.
func (e *Engine) try(t task, each time.Duration, take func(answer) error) error {
	var ended *endedError
	for tries := 0; ; tries++ {
		w, err := e.take(proves)
		if err != nil {
			return err
		}
		err = w.ask(t, each, func(a answer) (time.Duration, error) { return 0, take(a) })
		if err == nil {
			e.release(proves, w)
			return nil
		}
		e.drop(w)
		if tries >= maxTries || !errors.As(err, &ended) || ended.exhausted() {
			return err
		}
	}
}

// remember keeps a proof, and lets any other go where there are too many.
func (e *Engine) remember(key string, shown proof) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for other := range e.proofs {
		if len(e.proofs) < maxProofs {
			break
		}
		delete(e.proofs, other)
	}
	e.proofs[key] = shown
}

// exceeded says which limit a child exceeded, and what to do.
func exceeded(by *endedError, memory int64, timeout time.Duration) string {
	switch {
	case by.OutOfMemory():
		return fmt.Sprintf("exceeded its memory limit of %d MiB; make it smaller: build no large strings and no values that hold each other many times over", memory>>20)
	case by.StackOverflow():
		return "nests values too deeply; make it flatter"
	}
	if by.OutOfTime() {
		return fmt.Sprintf("exceeded its time limit of %s of CPU; make it simpler", compileCPU)
	}
	return fmt.Sprintf("exceeded its time limit of %s; make it simpler", timeout)
}
