package evaluations_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/gate/evaluations"
)

// registries answer no question until they are told to, and say which one was asked.
type registries struct {
	asked chan string
	mu    sync.Mutex
	may   map[string]chan struct{}
}

func newRegistries() *registries {
	return &registries{asked: make(chan string, 1000), may: map[string]chan struct{}{}}
}

// answer lets one question be answered.
func (r *registries) answer(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.may[name] == nil {
		r.may[name] = make(chan struct{}, 1)
	}
	r.may[name] <- struct{}{}
}

// question is one of an owner, to a registry of its own: everybody who may apply may name any host.
func (r *registries) question(owner string, i int) evaluations.Question {
	name := fmt.Sprintf("%s-%d", owner, i)
	may := make(chan struct{}, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.may[name] = may
	return evaluations.Question{Name: name + "/rendered", Subject: "1", Registry: name + ".example.com", Owner: owner,
		Ask: func(ctx context.Context) (a evaluations.Answer) {
			r.asked <- name
			select {
			case <-may:
			case <-ctx.Done():
				a.Err = ctx.Err()
			}
			return a
		}}
}

// queue is one whose questions end with the test.
func queue(t *testing.T) (*evaluations.Queue, context.Context) {
	t.Helper()
	q := evaluations.NewQueue(time.Now)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		q.Wait()
	})
	return q, ctx
}

func TestNobodysManyQuestionsHoldUpAnothers(t *testing.T) {
	q, ctx := queue(t)
	r := newRegistries()
	var last string
	for i := range evaluations.MaxOfAnOwner {
		q.Ask(ctx, r.question("many", i), false)
	}
	for range evaluations.MaxAtOnce {
		last = <-r.asked
	}
	q.Ask(ctx, r.question("few", 0), false)
	r.answer(last)
	if next := <-r.asked; next != "few-0" {
		t.Errorf("%s is asked next, behind which all questions of many wait", next)
	}
}

func TestTheQuestionsOfAnOwnerAreBounded(t *testing.T) {
	q, ctx := queue(t)
	r := newRegistries()
	var all []evaluations.Question
	for i := range evaluations.MaxOfAnOwner + 1 {
		all = append(all, r.question("many", i))
	}
	var first string
	crowded := all[evaluations.MaxOfAnOwner]
	for range 2 {
		for _, one := range all {
			a := q.Ask(ctx, one, false)
			if waits := a.Err != nil && strings.Contains(a.Err.Error(), "others are asked about first"); !errors.Is(a.Err, gate.ErrPending) ||
				waits != (one.Name == crowded.Name) {
				t.Fatalf("%s is answered: %v", one.Name, a)
			}
		}
	}
	for range evaluations.MaxAtOnce {
		first = <-r.asked
	}
	for range evaluations.MaxOfAnOwner {
		r.answer(first)
		<-q.Ended()
		q.Ask(ctx, crowded, false)
		if first = <-r.asked; first+"/rendered" == crowded.Name {
			return
		}
	}
	t.Error("it is never asked")
}

// TestAnAnswerKeepsNothingOfItsQuestion has a question refer to an application, which may be
// large and has as many others beside it as there are questions.
func TestAnAnswerKeepsNothingOfItsQuestion(t *testing.T) {
	q, ctx := queue(t)
	ask := func() weak.Pointer[[1 << 20]byte] {
		application := new([1 << 20]byte)
		q.Ask(ctx, evaluations.Question{Name: "a/rendered", Owner: "team", Ask: func(context.Context) evaluations.Answer {
			application[0]++
			return evaluations.Answer{Digest: "sha256:1"}
		}}, false)
		<-q.Ended()
		return weak.Make(application)
	}
	kept := ask()
	q.Wait()
	if a, ok := q.Answered(evaluations.Question{Name: "a/rendered"}); !ok || a.Digest != "sha256:1" {
		t.Fatalf("the answer is %v, %t", a, ok)
	}
	for range 3 {
		runtime.GC()
	}
	if kept.Value() != nil {
		t.Error("the application of an answered question is kept")
	}
	runtime.KeepAlive(q)
}
