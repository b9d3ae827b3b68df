package leader_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/skep-dev/skep/controller/leader"
	"github.com/skep-dev/skep/test/harness/await"
)

// lease is a lease in memory.
type lease struct {
	mu     sync.Mutex
	record *resourcelock.LeaderElectionRecord
	// away has every request fail, hangs has none answered until it is closed.
	away  bool
	hangs chan struct{}
}

func newLease() *lease { return &lease{} }

// answers waits where the API server hangs, whatever the context of the request says.
func (l *lease) answers() {
	l.mu.Lock()
	hangs := l.hangs
	l.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
}

var errAway = errors.New("the API server does not answer")

// hold is the lease as one replica sees it.
type hold struct {
	*lease
	identity string
}

func (h hold) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	h.answers()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.away:
		return nil, nil, errAway
	case h.record == nil:
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "lease")
	}
	record := *h.record
	raw, err := json.Marshal(record)
	return &record, raw, err
}

func (h hold) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return h.Update(ctx, r)
}

func (h hold) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	h.answers()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.away {
		return errAway
	}
	// As by a resourceVersion: whoever has not seen another's write overwrites nothing.
	if h.record != nil && h.record.HolderIdentity == thief {
		return errors.New("conflict")
	}
	h.record = &r
	return nil
}

func (h hold) RecordEvent(string) {}
func (h hold) Identity() string   { return h.identity }
func (h hold) Describe() string   { return "lease" }

// holder is who has the lease.
func (l *lease) holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.record == nil {
		return ""
	}
	return l.record.HolderIdentity
}

// thief is another replica.
const thief = "thief"

// steal has another have the lease, until it gives it back.
func (l *lease) steal() (giveBack func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := metav1.Now()
	stolen := resourcelock.LeaderElectionRecord{HolderIdentity: thief, LeaseDurationSeconds: 3600, RenewTime: now, AcquireTime: now}
	l.record = &stolen
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		free := stolen
		free.HolderIdentity = ""
		l.record = &free
	}
}

func (l *lease) cut(away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = away
}

// hang has the API server answer nothing until again is called.
func (l *lease) hang() (again func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hangs := make(chan struct{})
	l.hangs = hangs
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.hangs = nil
		close(hangs)
	})
}

// newElector competes for a lease: quickly, but a busy machine does not lose it.
func newElector(l *lease, identity string, change ...func(*leader.Options)) *leader.Elector {
	timing := leader.Timing{LeaseDuration: 5 * time.Second, RenewDeadline: 4 * time.Second, RetryPeriod: 20 * time.Millisecond}
	o := leader.Options{Lock: hold{l, identity}, Name: "lease", Timing: timing}
	for _, f := range change {
		f(&o)
	}
	return leader.New(o)
}

// start runs an elector until stop is called, which returns how it ended.
func start(t *testing.T, e *leader.Elector) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Start(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	await.True(t, what, time.Minute, holds)
}

// recv waits for a value.
func recv[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("%s: it did not come", what)
		panic("unreachable")
	}
}

// leads reports whether work is done.
func leads(t *testing.T, e *leader.Elector) bool {
	t.Helper()
	led, err := e.Do(t.Context(), func(context.Context) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return led
}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	m.Run()
}

func TestTheWorkOfATermEndsBeforeTheNextTermBegins(t *testing.T) {
	for name, lose := range map[string]func(*lease) (again func()){
		"another took the lease":           (*lease).steal,
		"the API server was away":          func(l *lease) func() { l.cut(true); return func() { l.cut(false) } },
		"the API server hung":              (*lease).hang,
		"the lease was deleted and stolen": func(l *lease) func() { l.mu.Lock(); l.record = nil; l.mu.Unlock(); return l.steal() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLease()
			e := newElector(l, "a")
			type begun struct{ end chan struct{} }
			terms := make(chan begun, 8)
			resets := 0
			e.Reset(func() { resets++ })
			e.Add(manager.RunnableFunc(func(ctx context.Context) error {
				b := begun{make(chan struct{})}
				terms <- b
				<-ctx.Done()
				<-b.end
				return nil
			}))
			elected := make(chan struct{}, 8)
			e.Elected(func() { elected <- struct{}{} })
			stop := start(t, e)
			first := recv(t, "the first term", terms)
			recv(t, "the election", elected)

			inside, seen, out := make(chan struct{}), make(chan error), make(chan bool, 1)
			go func() {
				led, _ := e.Do(t.Context(), func(ctx context.Context) error {
					close(inside)
					<-ctx.Done()
					seen <- context.Cause(ctx)
					return errors.New("interrupted")
				})
				out <- led
			}()
			recv(t, "the work to begin", inside)
			again := lose(l)
			if err := recv(t, "the work to be cancelled", seen); err == nil {
				t.Error("the work was not told why")
			}
			if recv(t, "the work to end", out) {
				t.Error("what was interrupted counts as done")
			}
			until(t, "the lead to be lost", func() bool { return !leads(t, e) })
			// One part of it has not ended, so nobody may believe that it has.
			if l.holder() == "" {
				t.Error("the lease was given back before all work had ended")
			}
			again()
			if len(terms) > 0 || e.Leads() {
				t.Error("a term began before the work of the one before had ended")
			}
			close(first.end)
			second := recv(t, "the second term", terms)
			recv(t, "the second election", elected)
			until(t, "the lead", func() bool { return leads(t, e) })
			close(second.end)
			if err := stop(); err != nil {
				t.Error(err)
			}
			if resets != 4 {
				t.Errorf("what belongs to a term was reset %d times, want 4", resets)
			}
			if l.holder() != "" {
				t.Errorf("%q holds the lease after it stopped", l.holder())
			}
		})
	}
}

func TestOfTwoReplicasOneWorksAtATime(t *testing.T) {
	l := newLease()
	var working sync.Mutex
	electors := map[string]*leader.Elector{}
	stops := map[string]func() error{}
	began := make(chan string, 64)
	for _, name := range []string{"a", "b"} {
		e := newElector(l, name)
		e.Add(manager.RunnableFunc(func(ctx context.Context) error {
			if !working.TryLock() {
				t.Error("both work")
				return nil
			}
			defer working.Unlock()
			began <- name
			<-ctx.Done()
			return nil
		}))
		electors[name], stops[name] = e, start(t, e)
	}
	first := recv(t, "one to lead", began)
	if err := stops[first](); err != nil {
		t.Error(err)
	}
	second := recv(t, "the other to follow", began)
	if second == first || leads(t, electors[first]) {
		t.Errorf("%s leads after %s was stopped", second, first)
	}
}

func TestWorkThatDoesNotEndEndsTheProcess(t *testing.T) {
	l := newLease()
	e := newElector(l, "a", func(o *leader.Options) { o.StopWithin = 50 * time.Millisecond })
	stuck, began := make(chan struct{}), make(chan struct{})
	defer close(stuck)
	e.Add(manager.RunnableFunc(func(context.Context) error {
		close(began)
		<-stuck
		return nil
	}))
	stop := start(t, e)
	recv(t, "the term", began)
	if err := stop(); err == nil || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("Start = %v", err)
	}
	if l.holder() != "a" {
		t.Error("the lease was given back although the work has not ended")
	}
}

func TestWorkThatFailsEndsTheProcess(t *testing.T) {
	broken := errors.New("broken")
	for name, lock := range map[string]resourcelock.Interface{"with an election": hold{newLease(), "a"}, "without one": nil} {
		t.Run(name, func(t *testing.T) {
			e := newElector(nil, "", func(o *leader.Options) { o.Lock = lock })
			e.Add(manager.RunnableFunc(func(context.Context) error { return broken }))
			if err := e.Start(t.Context()); !errors.Is(err, broken) {
				t.Errorf("Start = %v", err)
			}
		})
	}
}

func TestWithoutAnElectionThereIsOneTerm(t *testing.T) {
	e := newElector(nil, "", func(o *leader.Options) { o.Lock = nil })
	if leads(t, e) {
		t.Error("it leads before it started")
	}
	stop := start(t, e)
	until(t, "the lead", e.Leads)
	if err := stop(); err != nil || e.Leads() {
		t.Errorf("it ended with %v, and leads: %t", err, e.Leads())
	}
	var none *leader.Elector
	told := false
	none.Elected(func() { told = true })
	if !none.Leads() || !leads(t, none) || !told {
		t.Error("no Elector is not one that leads")
	}
}
