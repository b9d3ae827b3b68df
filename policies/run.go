package policies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// maxBatchBytes bounds how much Rego one task brings a worker.
	maxBatchBytes = 1 << 20
	// maxBatch is how many policies one task asks, and maxTime how many times the
	// time of one a namespace's own policies may take together: of CPUs, and twice that
	// of the clock.
	maxBatch = 16
	maxTime  = 10
	// turnTime is how long an evaluation asks one policy after another before others
	// have their turn.
	turnTime = 250 * time.Millisecond
	// maxExhausted is how many of a namespace's own policies may exceed a limit
	// while one document is decided; the others are then not evaluated.
	maxExhausted = 2
	// stretch is how many times its time of CPUs a policy may take of the clock, since
	// others use the machine, too. grace is how long a child may take longer than that.
	stretch = 3
	grace   = 500 * time.Millisecond
)

// run is one evaluation of policies: what is asked, and the answers so far.
type run struct {
	engine *Engine
	// tenant is the namespace of the application.
	tenant   string
	document []byte
	// unknown names what of the document nobody could tell; see evaluation.
	unknown []string
	list    []*compiled
	timeout time.Duration
	memory  int64
	// mu guards verdicts, those of the list, and which of them were given.
	mu       sync.Mutex
	verdicts []verdict
	answered []bool
	// exhausted counts the namespace's own policies that exceeded a limit. spent is the
	// time of CPUs that they took, lasted that of the clock: neither the start of a worker nor a
	// wait counts.
	exhausted int
	spent     time.Duration
	lasted    time.Duration
}

// evaluate asks policies about a document: first those of the cluster, which wait for no
// policy of a namespace. An error says that nothing was decided. Where ctx ends, the
// evaluation ends with the policy that is being asked; the answers of the cluster's
// policies stand where all were given, and the others of the namespace are late.
func (e *Engine) evaluate(ctx context.Context, r *run) ([]verdict, error) {
	if len(r.list) == 0 {
		return nil, ctx.Err()
	}
	r.engine = e
	r.memory = e.memory + memoryFactor*int64(len(r.document))
	r.verdicts, r.answered = make([]verdict, len(r.list)), make([]bool, len(r.list))
	done := make(chan error, 1)
	// A worker is of use to others once its policy has answered, so it is waited for
	// where the caller no longer waits.
	go func() {
		err := r.all(ctx, false)
		if err == nil {
			// What policies of the cluster took is not the namespace's doing.
			r.spent, r.lasted = 0, 0
			err = r.all(ctx, true)
		}
		done <- err
	}()
	var err error
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case err = <-done:
	}
	return r.end(err)
}

// end is what an evaluation comes to that ended with an error, or none.
func (r *run) end(err error) ([]verdict, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(r.verdicts)
	for i, c := range r.list {
		switch {
		case r.answered[i]:
		case c.scope.namespace == "":
			return nil, err
		default:
			all[i] = r.late(i, "was not evaluated to the end in time", "its authors and those of its namespace are to make their policies cheaper")
		}
	}
	return all, nil
}

// give takes the verdict of a policy.
func (r *run) give(i int, v verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.verdicts[i], r.answered[i] = v, true
}

// late is the verdict of one of the namespace's own policies that others, or the end of
// all time, left no time. Where parts are unknown it is no answer.
func (r *run) late(i int, what, fix string) verdict {
	if r.partly() {
		return verdict{Late: true}
	}
	v := fails(r.list[i].id, what, fix)
	v.Late = true
	return v
}

// all asks the policies of the cluster, or those of the namespace itself, turn by
// turn. Where one ends its worker the others are asked in another: their answers do
// not depend on it.
func (r *run) all(ctx context.Context, own bool) error {
	todo := r.unanswered(own)
	for tries, diedAt := 0, -1; len(todo) > 0; {
		if own {
			if todo = r.skip(todo); len(todo) == 0 {
				return nil
			}
		}
		answered, err := r.turn(ctx, own, todo)
		todo = todo[answered:]
		var ended *endedError
		switch {
		case err == nil:
		case !errors.As(err, &ended) || tries >= maxTries:
			return err
		case len(todo) == 0:
		case ended.OutOfThreads():
			// It is the doing of no policy, however often it happens.
			tries++
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

// unanswered lists the policies of the cluster, or those of the namespace itself, and
// answers for those that are not to be tried yet.
func (r *run) unanswered(own bool) []int {
	var todo []int
	for i, c := range r.list {
		if own != (c.scope.namespace != "") {
			continue
		}
		if v, held := r.engine.penalties.holds(r.penalty(c)); held {
			r.give(i, v)
		} else {
			todo = append(todo, i)
		}
	}
	return todo
}

// turn asks as many policies as one turn takes, and returns how many were answered.
func (r *run) turn(ctx context.Context, own bool, todo []int) (answered int, err error) {
	pool := r.engine.evaluators(own, len(r.document) > largeBytes)
	leave, err := pool.enter(ctx, r.tenant)
	if err != nil {
		return 0, fmt.Errorf("wait to decide: %w", err)
	}
	defer leave()
	w, err := r.engine.take(pool, r.memory)
	if err != nil {
		return 0, err
	}
	answered, err = r.ask(ctx, w, todo)
	if err != nil {
		r.engine.drop(w)
		return answered, err
	}
	r.engine.release(pool, w)
	return answered, nil
}

// clock is how long a policy may take of the clock: stretch times its time of CPUs, unless
// the caller waits for less, who is to have an answer, too.
func (r *run) clock(ctx context.Context) time.Duration {
	most := stretch * r.timeout
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline)-grace)
	}
	return max(most, r.timeout)
}

// ask asks a worker as many of the policies as one task takes, and returns how
// many were answered.
func (r *run) ask(ctx context.Context, w *worker, todo []int) (answered int, err error) {
	e := &evaluation{Document: r.document, Unknown: r.unknown, Timeout: r.timeout, Clock: r.clock(ctx), Turn: turnTime}
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
		return e.Clock + grace
	}
	// last is when the answer before came.
	var last time.Time
	t := task{Evaluate: e, Bounds: bounds{MemoryBytes: r.memory}}
	err = w.ask(t, startTimeout, func(a answer) (time.Duration, error) {
		before := last
		last = r.engine.now()
		switch {
		case a.Begun:
			return next(), nil
		case answered == len(e.Policies) || !a.Loaded && a.Verdict == nil:
			return 0, errAnswer
		case a.Loaded:
			w.known[e.Policies[answered].Key] = true
			return e.Clock + grace, nil
		}
		r.spent, r.lasted = r.spent+a.Took, r.lasted+last.Sub(before)
		r.answer(todo[answered], *a.Verdict)
		answered++
		return next(), nil
	})
	if ended := new(endedError); errors.As(err, &ended) && ended.exhausted() {
		r.lasted += r.engine.now().Sub(last)
		if !ended.overdue {
			r.spent += r.timeout
		}
	}
	return answered, err
}

// answer takes a verdict.
func (r *run) answer(i int, v verdict) {
	c := r.list[i]
	r.give(i, v)
	switch {
	case v.Busy:
		return
	case !v.Late:
		r.engine.penalties.lift(r.penalty(c))
		return
	}
	r.engine.penalties.add(r.penalty(c), v, timePenalty)
	r.count(c)
}

// exceeded is the verdict of a policy that had its worker ended.
func (r *run) exceeded(i int, by *endedError) {
	c := r.list[i]
	v, first := late(c.id, by.OutOfTime()), timePenalty
	if !by.overdue && !by.OutOfTime() {
		v = fails(c.id, r.limit(by), "its author is to make it smaller, or to narrow its match: it is to build no large strings, and no products of lists")
		v.Late, first = true, memoryPenalty
	}
	if r.partly() {
		// It is asked again when all is known, and then this is no answer.
		v = verdict{Late: true, Busy: v.Busy}
	}
	r.give(i, v)
	if v.Busy {
		return
	}
	r.engine.penalties.add(r.penalty(c), v, first)
	r.count(c)
}

// partly reports whether parts of the document are unknown.
func (r *run) partly() bool { return len(r.unknown) > 0 }

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

// skip answers for the namespace's own policies where too many of them exceeded a
// limit, or they took all of their time: they have no more of the time of others.
func (r *run) skip(todo []int) []int {
	if r.exhausted < maxExhausted && r.spent < maxTime*r.timeout && r.lasted < 2*maxTime*r.timeout {
		return todo
	}
	for _, i := range todo {
		r.give(i,
			r.late(i, "was not evaluated, since other policies of its namespace exceeded their limits or took all time before",
				"their authors are to make those smaller or cheaper first"))
	}
	return nil
}

// penalty is the key of a policy's penalties: an application of one namespace that
// has it exceed a limit changes nothing for others, nor does an evaluation of a part
// of the input change one of all of it.
func (r *run) penalty(c *compiled) string {
	return fmt.Sprintf("%s %v %s", c.key, r.partly(), r.tenant)
}
