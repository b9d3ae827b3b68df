// Package leader decides which replica of the controller writes, and runs what only
// that one may do for as long as it leads.
//
// A replica that loses the lead keeps running: it answers admission requests and
// agents, and competes for the lease again. The work of one term has ended before
// the lease is given back and before the replica can lead again. The package knows
// nothing of what is done in a term.
package leader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Options says how replicas compete.
type Options struct {
	// Lock is what one of them holds; nil means that this replica leads always.
	Lock resourcelock.Interface
	// Name is what metrics and logs call the lease.
	Name string
	Timing
	// StopWithin is how long the work of a term may take to end; zero means 30
	// seconds. Work that takes longer ends the process.
	StopWithin time.Duration
}

// errOver is why work was cancelled that is done in a term.
var errOver = errors.New("another replica leads")

// Elector runs what the leader does. A nil Elector leads always.
type Elector struct {
	o Options
	// work runs once a term; reset is called between terms. Both are set before Start.
	work  []manager.Runnable
	reset []func()

	mu sync.Mutex
	// term is the one that runs; nil where this replica does not lead.
	term *term
	// told are called when a term begins; first is closed when the first one does.
	told  []func()
	first chan struct{}
	once  sync.Once
}

// term is the time from an election to the loss of the lead.
type term struct {
	ctx  context.Context
	work sync.WaitGroup
}

// New returns an Elector that does not lead yet.
func New(o Options) *Elector {
	o.Timing = o.OrDefault()
	o.StopWithin = cmp.Or(o.StopWithin, 30*time.Second)
	return &Elector{o: o, first: make(chan struct{})}
}

// Add has work started in each term. Its context ends with the term; an error from
// it while the term lasts ends the process.
func (e *Elector) Add(work ...manager.Runnable) { e.work = append(e.work, work...) }

// Reset has a function called before each term and after it, while no work runs.
func (e *Elector) Reset(f func()) { e.reset = append(e.reset, f) }

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica
// competes.
func (e *Elector) NeedLeaderElection() bool { return false }

// Start competes for the lease until ctx ends.
func (e *Elector) Start(ctx context.Context) error {
	if e.o.Lock == nil {
		return e.lead(ctx, ctx, func() {})
	}
	for ctx.Err() == nil {
		if err := e.campaign(ctx); err != nil {
			return err
		}
	}
	return nil
}

// campaign waits for the lease and leads for as long as it is held. It returns once
// all work has ended, and the lease with it where ctx ended.
func (e *Elector) campaign(ctx context.Context) error {
	holding, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	guard := &guard{Interface: e.o.Lock, lost: resign, deadline: e.o.RenewDeadline}
	guard.busy.Store(true)
	won := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: guard, Name: e.o.Name, ReleaseOnCancel: true,
		LeaseDuration: e.o.LeaseDuration, RenewDeadline: e.o.RenewDeadline, RetryPeriod: e.o.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { won <- ctx },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("compete for lease %s: %w", e.o.Name, err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		elector.Run(holding)
	}()
	defer func() {
		resign()
		<-over
	}()
	select {
	case <-ctx.Done():
	case <-over:
	case held := <-won:
		return e.lead(ctx, held, guard.free)
	}
	return nil
}

// lead runs one term, which ends with either context, and returns once all its work
// has ended; free is called then.
func (e *Elector) lead(ctx, held context.Context, free func()) error {
	termCtx, cancel := context.WithCancelCause(held)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	log := ctrl.LoggerFrom(ctx).WithValues("lease", e.o.Name)
	e.between()
	t := &term{ctx: termCtx}
	failed := make(chan error, len(e.work))
	for _, w := range e.work {
		t.work.Go(func() {
			if err := w.Start(termCtx); err != nil && termCtx.Err() == nil {
				failed <- err
				cancel(err)
			}
		})
	}
	told := e.set(t)
	e.once.Do(func() { close(e.first) })
	log.Info("this replica leads")
	for _, f := range told {
		f()
	}
	<-termCtx.Done()
	e.set(nil)
	if ctx.Err() == nil {
		log.Info("this replica does not lead any more: it writes nothing, and keeps answering")
	}
	if err := e.ended(t); err != nil {
		return err
	}
	e.between()
	free()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// set makes a term the present one, or none, and returns whom to tell.
func (e *Elector) set(t *term) []func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.term = t
	return e.told
}

// ended waits for the work of a term.
func (e *Elector) ended(t *term) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.work.Wait()
	}()
	deadline := time.NewTimer(e.o.StopWithin)
	defer deadline.Stop()
	select {
	case <-done:
		return nil
	case <-deadline.C:
		return fmt.Errorf("stop what the leader does: it has not ended %s after the lead was lost", e.o.StopWithin)
	}
}

func (e *Elector) between() {
	for _, f := range e.reset {
		f()
	}
}

// Do calls f within the present term, and reports whether there is one: where this
// replica does not lead, f is not called. The context of f ends with the term, and
// the next term, of whichever replica gives way, begins after f returned. What f
// returns after the term ended is no error.
func (e *Elector) Do(ctx context.Context, f func(context.Context) error) (led bool, err error) {
	if e == nil {
		return true, f(ctx)
	}
	e.mu.Lock()
	t := e.term
	if t == nil || t.ctx.Err() != nil {
		e.mu.Unlock()
		return false, nil
	}
	t.work.Add(1)
	e.mu.Unlock()
	defer t.work.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.ctx, func() { cancel(errOver) })()
	err = f(ctx)
	if t.ctx.Err() != nil {
		return false, nil
	}
	return true, err
}

// Leads reports whether this replica leads.
func (e *Elector) Leads() bool {
	if e == nil {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term != nil && e.term.ctx.Err() == nil
}

// Elected has f called each time that this replica begins to lead, and now where it
// does already.
func (e *Elector) Elected(f func()) {
	if e == nil {
		f()
		return
	}
	e.mu.Lock()
	e.told = append(e.told, f)
	leads := e.term != nil
	e.mu.Unlock()
	if leads {
		f()
	}
}
