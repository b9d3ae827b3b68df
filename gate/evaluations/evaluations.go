// Package evaluations asks registries beside the loop that acts, so that no registry
// delays it.
//
// It owns how many questions are asked at once, what a slow registry may take, and the
// last answer to each question. It decides nothing about an application.
package evaluations

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
)

// How many evaluations wait for registries at once: in total, and for one
// registry. An evaluation is slow after slowAfter, and one slow evaluation is left
// to a registry: a registry that hangs holds one place. Evaluations that a
// revocation waits for have places of their own.
const (
	MaxAtOnce      = 16
	MaxOfARegistry = 4
	slowAfter      = 2 * time.Second
)

// MaxOfAnOwner is how many questions of one owner are under way at most, those that wait
// included: each keeps its application in memory.
const MaxOfAnOwner = 64

// revocationWaits is how long a revocation waits for the answer about what runs: a
// little more than collecting signatures takes (gate.Options.CollectTimeout). Then what
// was sealed decides.
const revocationWaits = 20 * time.Second

// ErrOverdue stands for an answer that a revocation waited for too long.
var ErrOverdue = errors.New("no answer in the time that a revocation waits")

// errCrowded stands for the answer to a question that its owner has too many others beside.
// It says no time, so that who repeats it says the same.
var errCrowded = fmt.Errorf("%w: others are asked about first", gate.ErrPending)

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

// Question is what is asked of one application. Its answer holds for an equal
// question only: a slow answer to an older question is never taken for an answer
// to a newer one.
type Question struct {
	// Name says of what it is one of the questions; a newer one takes the place of
	// an older one of the same name.
	Name string
	// Subject hashes what is asked, revision names the settings it is asked under.
	Subject, Revision string
	// Registry is the one that is asked.
	Registry string
	// Owner is whose question it is, such as a namespace: nobody's many questions hold up
	// another's. Empty where all are of one.
	Owner string
	// Urgent questions are those that a revocation waits for.
	Urgent bool
	// Ask gets the answer. It ends with its context.
	Ask func(context.Context) Answer
}

func (q Question) same(other Question) bool {
	return q.Subject == other.Subject && q.Revision == other.Revision
}

// Answer is what a registry, or the gate, said.
type Answer struct {
	Verdict gate.Verdict
	// Told is what is told of a verdict that is not kept itself, since facts and evidence make
	// it large.
	Told v1alpha1.RenderedApplication
	// Digest is what a tag stands for.
	Digest string
	Err    error
}

// evaluation is a question on its way to its answer.
type evaluation struct {
	Question
	since   time.Time
	stop    context.CancelCauseFunc
	running bool
	slow    bool
}

// known is the last answer to a question, which is not asked by it again.
type known struct {
	Question
	Answer
}

// answered is an answer to a question, without what the question needed to be asked.
func answered(q Question, a Answer) known {
	q.Ask = nil
	return known{q, a}
}

// Queue asks registries beside the loop that acts. Only Wait waits for
// registries.
type Queue struct {
	// SlowAfter is how long an evaluation takes that counts as slow, RevocationWaits how
	// long a revocation waits for an answer. They are set before the first question.
	SlowAfter, RevocationWaits time.Duration

	now   func() time.Time
	ended chan struct{}
	group sync.WaitGroup

	// mu guards what follows.
	mu sync.Mutex
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

// NewQueue makes a queue by a clock.
func NewQueue(now func() time.Time) *Queue {
	return &Queue{
		now: now, ended: make(chan struct{}, 1), SlowAfter: slowAfter, RevocationWaits: revocationWaits, known: map[string]known{}, revoking: map[string]waiting{},
	}
}

// Ask returns the last answer to a question, or an error that is gate.ErrPending. It has the
// question asked where there is no answer, and, with anew, even if there is one; later, where
// its owner has MaxOfAnOwner under way.
func (e *Queue) Ask(ctx context.Context, q Question, anew bool) Answer {
	e.mu.Lock()
	defer e.mu.Unlock()
	have, known := e.known[q.Name]
	known = known && have.same(q)
	pending := errCrowded
	if (!known || anew) && e.hasRoom(q) {
		pending = &pendingError{registry: q.Registry, since: e.enter(ctx, q)}
	}
	if known {
		return have.Answer
	}
	return Answer{Err: pending}
}

// hasRoom reports whether a question is under way, or its owner may have one more. The caller
// holds mu.
func (e *Queue) hasRoom(q Question) bool {
	count := 0
	for _, other := range e.all {
		if other.Name == q.Name {
			return true
		}
		if other.Owner == q.Owner {
			count++
		}
	}
	return q.Owner == "" || count < MaxOfAnOwner
}

// Overdue reports whether a revocation waited too long for the answer to a question.
// Time runs from the first such question under the same settings, whatever an author
// made of the definition since.
func (e *Queue) Overdue(q Question) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	uid, _, _ := strings.Cut(q.Name, "/")
	if w, ok := e.revoking[uid]; ok && w.revision == q.Revision {
		return time.Since(w.since) >= e.RevocationWaits
	}
	e.revoking[uid] = waiting{revision: q.Revision, since: time.Now()}
	time.AfterFunc(e.RevocationWaits, e.Signal)
	return false
}

// Decided forgets since when a revocation waited.
func (e *Queue) Decided(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.revoking, uid)
}

// Answered returns the last answer to a question; false where there is none.
func (e *Queue) Answered(q Question) (Answer, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	have, ok := e.known[q.Name]
	return have.Answer, ok && have.same(q)
}

// enter puts a question among those under way, and returns since when it waits. One
// under way with another subject, or with less urgency, gives way.
func (e *Queue) enter(ctx context.Context, q Question) (since time.Time) {
	since = e.now()
	i := slices.IndexFunc(e.all, func(other *evaluation) bool { return other.Name == q.Name })
	if i >= 0 {
		before := e.all[i]
		if before.Subject == q.Subject {
			since = before.since
		}
		switch {
		case !before.running:
			before.Question, before.since = q, since
			e.begin(ctx)
			return since
		case before.Subject == q.Subject && before.Urgent == q.Urgent:
			return since
		}
		before.stop(context.Canceled)
		e.all = slices.Delete(e.all, i, i+1)
	}
	e.all = append(e.all, &evaluation{Question: q, since: since})
	e.begin(ctx)
	return since
}

// Note keeps an answer that was found without a registry.
func (e *Queue) Note(q Question, a Answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[q.Name] = answered(q, a)
}

// Retain drops questions and answers about applications of other UIDs.
func (e *Queue) Retain(uids map[string]bool) {
	gone := func(name string) bool {
		uid, _, _ := strings.Cut(name, "/")
		return !uids[uid]
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.DeleteFunc(e.all, func(v *evaluation) bool {
		if gone(v.Name) && v.running {
			v.stop(context.Canceled)
		}
		return gone(v.Name)
	})
	maps.DeleteFunc(e.known, func(name string, _ known) bool { return gone(name) })
	maps.DeleteFunc(e.revoking, func(uid string, _ waiting) bool { return !uids[uid] })
}

// Idle reports whether no question is under way.
func (e *Queue) Idle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all) == 0
}

// begin starts what there is a place for. The caller holds mu.
func (e *Queue) begin(ctx context.Context) {
	for v := e.next(); v != nil; v = e.next() {
		running, stop := context.WithCancelCause(ctx)
		v.running, v.stop = true, stop
		timer := time.AfterFunc(e.SlowAfter, func() { e.slowed(v) })
		e.group.Go(func() {
			a := v.Ask(running)
			timer.Stop()
			e.end(ctx, v, a, errors.Is(context.Cause(running), errPreempted))
			stop(nil)
		})
	}
}

// next is the evaluation that starts next: one of the owner that has the fewest running, the
// first that was asked of those; nil where there is a place for none. The caller holds mu.
func (e *Queue) next() (first *evaluation) {
	running := map[string]int{}
	for _, v := range e.all {
		if v.running {
			running[v.Owner]++
		}
	}
	for _, v := range e.all {
		if !v.running && (first == nil || running[v.Owner] < running[first.Owner]) && e.hasPlace(v) {
			first = v
		}
	}
	return first
}

// hasPlace reports whether one more evaluation may run. The caller holds mu.
func (e *Queue) hasPlace(v *evaluation) bool {
	total, registry, slow := 0, 0, false
	for _, other := range e.all {
		if !other.running || other.Urgent != v.Urgent {
			continue
		}
		total++
		if other.Registry == v.Registry {
			registry++
			slow = slow || other.slow
		}
	}
	return total < MaxAtOnce && registry < MaxOfARegistry && (!slow || v.Urgent)
}

// slowed ends an evaluation that takes long while another one waits for the same
// slow registry.
func (e *Queue) slowed(v *evaluation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	crowded := slices.ContainsFunc(e.all, func(other *evaluation) bool {
		return other.slow && other.Registry == v.Registry
	})
	switch {
	case v.Urgent:
	case crowded:
		v.stop(errPreempted)
	default:
		v.slow = true
	}
}

// end keeps an answer, unless the question gave way to a newer one. What was
// crowded out waits again, behind the others.
func (e *Queue) end(ctx context.Context, v *evaluation, a Answer, crowded bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.Index(e.all, v)
	if i >= 0 {
		e.all = slices.Delete(e.all, i, i+1)
		if crowded && a.Err != nil && ctx.Err() == nil {
			e.all = append(e.all, &evaluation{Question: v.Question, since: v.since})
		} else {
			e.known[v.Name] = answered(v.Question, a)
		}
	}
	e.begin(ctx)
	e.Signal()
}

// Signal has the loop look at the answers.
func (e *Queue) Signal() {
	select {
	case e.ended <- struct{}{}:
	default:
	}
}

// Ended receives a value, without waiting, after an answer came.
func (e *Queue) Ended() <-chan struct{} { return e.ended }

// Wait waits until no question is under way, which needs their contexts to end.
func (e *Queue) Wait() { e.group.Wait() }
