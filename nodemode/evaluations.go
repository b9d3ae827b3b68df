package nodemode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/skep-dev/skep/gate"
)

// How many evaluations wait for registries at once: in total, and for one
// registry. An evaluation is slow after slowAfter, and one slow evaluation is left
// to a registry: a registry that hangs holds one place. Evaluations that a
// revocation waits for have places of their own.
const (
	placesInTotal     = 16
	placesOfARegistry = 4
	slowAfter         = 2 * time.Second
)

// revocationWaits is how long a revocation waits for the answer about what runs: a
// little more than collecting signatures takes (gate.Options.CollectTimeout). Then what
// was sealed decides.
const revocationWaits = 20 * time.Second

// errOverdue stands for an answer that a revocation waited for too long.
var errOverdue = errors.New("no answer in the time that a revocation waits")

// errPreempted ends an evaluation whose registry is slow while another one waits for
// the same registry. It is begun again later.
var errPreempted = errors.New("another evaluation waits for the same slow registry")

// pendingError says which registry an evaluation waits for, and since when.
type pendingError struct {
	registry string
	since    time.Time
}

// Error implements error.
func (e *pendingError) Error() string {
	from := "the image"
	if e.registry != "" {
		from = "registry " + e.registry
	}
	return fmt.Sprintf("waiting for %s since %s; what runs is kept", from, e.since.UTC().Format(time.RFC3339))
}

// Is implements errors.Is.
func (e *pendingError) Is(target error) bool { return target == gate.ErrPending }

// question is what is asked of one application. Its answer holds for an equal
// question only: a slow answer to an older question is never taken for an answer
// to a newer one.
type question struct {
	// name says of what it is one of the questions; a newer one takes the place of
	// an older one of the same name.
	name string
	// subject hashes what is asked, revision names the settings it is asked under.
	subject, revision string
	// registry is the one that is asked.
	registry string
	// urgent questions are those that a revocation waits for.
	urgent bool
	// ask gets the answer. It ends with its context.
	ask func(context.Context) reply
}

func (q question) same(other question) bool {
	return q.subject == other.subject && q.revision == other.revision
}

// reply is what a registry, or the gate, said.
type reply struct {
	verdict gate.Verdict
	// digest is what a tag stands for.
	digest string
	err    error
}

// evaluation is a question on its way to its answer.
type evaluation struct {
	question
	since   time.Time
	stop    context.CancelCauseFunc
	running bool
	slow    bool
}

// known is the last answer to a question.
type known struct {
	question
	reply
}

// evaluations asks registries beside the loop that acts. No method waits for a
// registry but settled.
type evaluations struct {
	now func() time.Time
	// ended is told, without waiting, that an answer came.
	ended chan struct{}
	// slowAfter and revocationWaits are the constants, but in tests.
	slowAfter, revocationWaits time.Duration

	group sync.WaitGroup
	mu    sync.Mutex
	// all are the questions under way in the order they were asked, known the
	// answers, by name.
	all   []*evaluation
	known map[string]known
	// revoking is since when revocations wait, by the UID of the application.
	revoking map[string]waiting
}

// waiting is since when a revocation waits under a revision of settings, by the
// machine's clock.
type waiting struct {
	revision string
	since    time.Time
}

func newEvaluations(now func() time.Time) *evaluations {
	return &evaluations{now: now, ended: make(chan struct{}, 1), slowAfter: slowAfter, revocationWaits: revocationWaits, known: map[string]known{}, revoking: map[string]waiting{}}
}

// ask returns the last answer to a question, or a pendingError. It has the question
// asked where there is no answer, and, with anew, even if there is one.
func (e *evaluations) ask(ctx context.Context, q question, anew bool) reply {
	e.mu.Lock()
	defer e.mu.Unlock()
	have, answered := e.known[q.name]
	answered = answered && have.same(q)
	since := e.now()
	if !answered || anew {
		since = e.enter(ctx, q)
	}
	if answered {
		return have.reply
	}
	return reply{err: &pendingError{registry: q.registry, since: since}}
}

// overdue reports whether a revocation waited too long for the answer to a question.
// Time runs from the first such question under the same settings, whatever an author
// made of the definition since.
func (e *evaluations) overdue(q question) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	uid, _, _ := strings.Cut(q.name, "/")
	if w, ok := e.revoking[uid]; ok && w.revision == q.revision {
		return time.Since(w.since) >= e.revocationWaits
	}
	e.revoking[uid] = waiting{revision: q.revision, since: time.Now()}
	time.AfterFunc(e.revocationWaits, e.signal)
	return false
}

// waitsNoMore forgets since when a revocation waited.
func (e *evaluations) waitsNoMore(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.revoking, uid)
}

// answered returns the last answer to a question; false where there is none.
func (e *evaluations) answered(q question) (reply, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	have, ok := e.known[q.name]
	return have.reply, ok && have.same(q)
}

// enter puts a question among those under way, and returns since when it waits. One
// under way with another subject, or with less urgency, gives way.
func (e *evaluations) enter(ctx context.Context, q question) (since time.Time) {
	since = e.now()
	i := slices.IndexFunc(e.all, func(other *evaluation) bool { return other.name == q.name })
	if i >= 0 {
		before := e.all[i]
		if before.subject == q.subject {
			since = before.since
		}
		switch {
		case !before.running:
			before.question, before.since = q, since
			e.begin(ctx)
			return since
		case before.subject == q.subject && before.urgent == q.urgent:
			return since
		}
		before.stop(context.Canceled)
		e.all = slices.Delete(e.all, i, i+1)
	}
	e.all = append(e.all, &evaluation{question: q, since: since})
	e.begin(ctx)
	return since
}

// note keeps an answer that was found without a registry.
func (e *evaluations) note(q question, a reply) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[q.name] = known{q, a}
}

// retain drops questions and answers about applications that are not there any
// more.
func (e *evaluations) retain(there []standing) {
	wanted := map[string]bool{}
	for _, s := range there {
		wanted[uidOf(s.id)] = true
	}
	gone := func(name string) bool {
		uid, _, _ := strings.Cut(name, "/")
		return !wanted[uid]
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.DeleteFunc(e.all, func(v *evaluation) bool {
		if gone(v.name) && v.running {
			v.stop(context.Canceled)
		}
		return gone(v.name)
	})
	maps.DeleteFunc(e.known, func(name string, _ known) bool { return gone(name) })
	maps.DeleteFunc(e.revoking, func(uid string, _ waiting) bool { return !wanted[uid] })
}

// idle reports whether no question is under way.
func (e *evaluations) idle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all) == 0
}

// begin starts what there is a place for, in the order it was asked. The caller
// holds mu.
func (e *evaluations) begin(ctx context.Context) {
	for _, v := range e.all {
		if !v.running && e.hasPlace(v) {
			running, stop := context.WithCancelCause(ctx)
			v.running, v.stop = true, stop
			timer := time.AfterFunc(e.slowAfter, func() { e.slowed(v) })
			e.group.Go(func() {
				a := v.ask(running)
				timer.Stop()
				e.end(ctx, v, a, errors.Is(context.Cause(running), errPreempted))
				stop(nil)
			})
		}
	}
}

// hasPlace reports whether one more evaluation may run. The caller holds mu.
func (e *evaluations) hasPlace(v *evaluation) bool {
	total, registry, slow := 0, 0, false
	for _, other := range e.all {
		if !other.running || other.urgent != v.urgent {
			continue
		}
		total++
		if other.registry == v.registry {
			registry++
			slow = slow || other.slow
		}
	}
	return total < placesInTotal && registry < placesOfARegistry && (!slow || v.urgent)
}

// slowed ends an evaluation that takes long while another one waits for the same
// slow registry.
func (e *evaluations) slowed(v *evaluation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	crowded := slices.ContainsFunc(e.all, func(other *evaluation) bool {
		return other.slow && other.registry == v.registry
	})
	switch {
	case v.urgent:
	case crowded:
		v.stop(errPreempted)
	default:
		v.slow = true
	}
}

// end keeps an answer, unless the question gave way to a newer one. What was
// crowded out waits again, behind the others.
func (e *evaluations) end(ctx context.Context, v *evaluation, a reply, crowded bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.Index(e.all, v)
	if i >= 0 {
		e.all = slices.Delete(e.all, i, i+1)
		if crowded && a.err != nil && ctx.Err() == nil {
			e.all = append(e.all, &evaluation{question: v.question, since: v.since})
		} else {
			e.known[v.name] = known{v.question, a}
		}
	}
	e.begin(ctx)
	e.signal()
}

// signal has the loop look at the answers.
func (e *evaluations) signal() {
	select {
	case e.ended <- struct{}{}:
	default:
	}
}
