package policies

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// maxBatchBytes bounds how much Rego one task brings a worker.
	maxBatchBytes = 1 << 20
	// maxBatch is how many policies one task asks, and maxTime how many times the
	// time of one a namespace's own policies may take together.
	maxBatch = 16
	maxTime  = 10
	// maxExhausted is how many of a namespace's own policies may exceed a limit
	// while one document is decided; the others are then not evaluated.
	maxExhausted = 2
	// grace is how long a child may take longer than the policy that it evaluates.
	grace = 500 * time.Millisecond
)

// evaluation of policies: what is asked, and the answers so far.
type run struct {
	engine *Engine
	// tenant is the namespace of the application.
	tenant   string
	document []byte
	list     []*compiled
	timeout  time.Duration
	memory   int64
	// verdicts are those of the list.
	verdicts []verdict
	// exhausted counts the namespace's own policies that exceeded a limit.
	exhausted int
	began     time.Time
}

// evaluate asks policies about a document, for an application of a namespace. An
// error says that nothing was decided.
func (e *Engine) evaluate(ctx context.Context, tenant string, document []byte, list []*compiled, timeout time.Duration) ([]verdict, error) {
	if len(list) == 0 {
		return nil, nil
	}
	large := len(document) > largeBytes
	name, all := "evaluate "+tenant, e.evaluations
	if large {
		name, all = "evaluate large "+tenant, e.large
	}
	leave, err := e.turn(ctx, name, int64(max(e.evaluators/2, 1)), all)
	if err != nil {
		return nil, fmt.Errorf("wait to decide: %w", err)
	}
	r := &run{engine: e, tenant: tenant, document: document, list: list, timeout: timeout,
		memory: e.memory + memoryFactor*int64(len(document)), verdicts: make([]verdict, len(list)), began: e.now()}
	done := make(chan error, 1)
	// It goes on where the caller gives up: a worker is no use in the middle.
	go func() {
		defer leave()
		done <- r.all(large)
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case err := <-done:
		return r.verdicts, err
	}
}

// all asks every policy, and starts another worker where one is ended by a policy:
// what the others say does not depend on it.
func (r *run) all(large bool) error {
	var todo []int
	for i, c := range r.list {
		if v, held := r.engine.penalties.holds(r.penalty(c)); held {
			r.verdicts[i] = v
		} else {
			todo = append(todo, i)
		}
	}
	for tries, diedAt := 0, -1; len(todo) > 0; {
		if todo = r.skip(todo); len(todo) == 0 {
			return nil
		}
		w, err := r.worker(large)
		if err != nil {
			return err
		}
		answered, err := r.ask(w, todo)
		todo = todo[answered:]
		var ended *endedError
		if err == nil {
			r.done(w, large)
			continue
		}
		r.engine.drop(w)
		switch {
		case !errors.As(err, &ended) || tries >= maxTries:
			return err
		case len(todo) == 0:
		case ended.exhausted() || ended.begun && diedAt == todo[0]:
			r.exceeded(todo[0], ended)
			todo = todo[1:]
		case ended.begun:
			// Somebody else may have ended it, unless the policy does it again.
			diedAt = todo[0]
		default:
			tries++
		}
	}
	return nil
}

// worker is one that evaluates, of its own for a large document.
func (r *run) worker(large bool) (*worker, error) {
	if large {
		return r.engine.start(r.memory)
	}
	return r.engine.take(evaluates)
}

// done gives a worker back.
func (r *run) done(w *worker, large bool) {
	if large {
		r.engine.drop(w)
		w.end()
		return
	}
	r.engine.release(evaluates, w)
}

// ask asks a worker as many of the policies as one task takes, and returns how
// many were answered.
func (r *run) ask(w *worker, todo []int) (answered int, err error) {
	e := &evaluation{Document: r.document, Timeout: r.timeout}
	bytes := 0
	for _, i := range todo[:min(len(todo), maxBatch)] {
		c := r.list[i]
		q := question{Key: c.key}
		if !w.known[c.key] {
			if bytes += len(c.program.Rego) + len(c.program.Parameters); bytes > maxBatchBytes && len(e.Policies) > 0 {
				break
			}
			q.Program = &c.program
		}
		e.Policies = append(e.Policies, q)
	}
	// next is how long the answer may take that comes next: what a worker does not
	// know it compiles first.
	next := func() time.Duration {
		if answered < len(e.Policies) && e.Policies[answered].Program != nil {
			return r.engine.patience
		}
		return r.timeout + grace
	}
	t := task{Evaluate: e, Bounds: bounds{MemoryBytes: r.memory}}
	err = w.ask(t, startTimeout, func(a answer) (time.Duration, error) {
		switch {
		case a.Begun:
			return next(), nil
		case answered == len(e.Policies) || !a.Loaded && a.Verdict == nil:
			return 0, errAnswer
		case a.Loaded:
			w.known[e.Policies[answered].Key] = true
			return r.timeout + grace, nil
		}
		r.answer(todo[answered], *a.Verdict)
		answered++
		return next(), nil
	})
	return answered, err
}

// answer takes a verdict.
func (r *run) answer(i int, v verdict) {
	c := r.list[i]
	r.verdicts[i] = v
	if !v.Late {
		r.engine.penalties.lift(r.penalty(c))
		return
	}
	r.engine.penalties.add(r.penalty(c), v, timePenalty)
	r.count(c)
}

// exceeded is the verdict of a policy that had its worker ended.
func (r *run) exceeded(i int, by *endedError) {
	c := r.list[i]
	v, first := tooSlow(c.id), timePenalty
	if !by.overdue {
		v = fails(c.id, r.limit(by), "its author is to make it smaller, or to narrow its match: it is to build no large strings, and no products of lists")
		v.Late, first = true, memoryPenalty
	}
	r.verdicts[i] = v
	r.engine.penalties.add(r.penalty(c), v, first)
	r.count(c)
}

// limit is the limit that a policy exceeded.
func (r *run) limit(by *endedError) string {
	switch {
	case by.StackOverflow():
		return "nests values too deeply"
	case by.OutOfMemory():
		return fmt.Sprintf("exceeded its memory limit of %d MiB", r.memory>>20)
	}
	return "made the evaluator end"
}

// count counts the policies of the namespace itself that exceeded a limit.
func (r *run) count(c *compiled) {
	if c.scope.namespace != "" {
		r.exhausted++
	}
}

// skip answers for the policies of a namespace of which too many exceeded a limit:
// they have no more of the time of others.
func (r *run) skip(todo []int) []int {
	if r.exhausted < maxExhausted && r.engine.now().Sub(r.began) < maxTime*r.timeout {
		return todo
	}
	var rest []int
	for _, i := range todo {
		c := r.list[i]
		if c.scope.namespace == "" {
			rest = append(rest, i)
			continue
		}
		v := fails(c.id, "was not evaluated, since other policies of its namespace exceeded their limits or took all time before", "their authors are to make those smaller or cheaper first")
		v.Late = true
		r.verdicts[i] = v
	}
	return rest
}

// penalty is the key of a policy's penalties: an application of one namespace that
// has it exceed a limit changes nothing for others.
func (r *run) penalty(c *compiled) string { return c.key + " " + r.tenant }
