package agent

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Run holds the kernel to the intents until the context ends: at once when an
// intent comes and when an interface or a pin changes, and at the next sweep when
// a link changed or something is left to do. Programs stay when it returns. It returns nil when the context ends.
func (a *Agent) Run(ctx context.Context) error {
	sweep := time.NewTicker(a.opts.SweepInterval)
	defer sweep.Stop()
	w := a.startWatch()
	defer w.stop()
	for {
		a.Reconcile(ctx)
		w.followPins()
		if !a.awaitTurn(ctx, sweep.C) {
			return nil
		}
	}
}

// awaitTurn waits until there may be something to do, and reports false when the
// context ends.
func (a *Agent) awaitTurn(ctx context.Context, sweep <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-sweep:
			if !a.isIdle() {
				return true
			}
		case <-a.wake:
			return true
		case <-a.loads.ended:
			return true
		}
	}
}

// Settled waits until every accepted intent was worked on once: its
// application is as it is to be, or has failed and is being tried again. The
// error joins what failed; Status tells more.
func (a *Agent) Settled(ctx context.Context) error {
	for {
		a.mu.Lock()
		wait := a.settled
		a.mu.Unlock()
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for applications: %w", context.Cause(ctx))
		case <-wait:
		}
		a.mu.Lock()
		done := wait == a.settled
		a.mu.Unlock()
		if done {
			break
		}
	}
	var errs []error
	for _, s := range a.Status() {
		if s.Error != "" {
			errs = append(errs, fmt.Errorf("%s: %s", s.Application, s.Error))
		}
	}
	return errors.Join(errs...)
}

// Unload takes every program of Skep's away from this node, with its pins. The
// cached intents stay, and bring them back at the next start.
func (a *Agent) Unload() error {
	a.work.Lock()
	defer a.work.Unlock()
	return errors.Join(a.loads.keep(nil, nil), a.owned.close(), a.store.Clear(), a.adopt())
}
