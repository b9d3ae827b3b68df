package agent

import (
	"context"
	"time"

	"github.com/skep-dev/skep/agent/reconcile/changes"
)

// Run holds the kernel to the intents until the context ends: at once when an
// intent comes and when an interface or a pin changes, and at the next sweep when
// a link changed or something is left to do. Programs stay when it returns. It returns nil when the context ends.
func (a *Agent) Run(ctx context.Context) error {
	sweep := time.NewTicker(a.opts.SweepInterval)
	defer sweep.Stop()
	w := a.changes.Watch(a.pins, a.opts.Log)
	defer w.Stop()
	for {
		a.reconcile(ctx)
		if !a.awaitWork(ctx, sweep.C, w) {
			return nil
		}
	}
}

// Reconcile looks, and does what is to be done: first what needs no load, then,
// for as long as reconcileGrace, one load after the other. What takes longer goes on
// beside it. Run calls it; a caller of its own needs it only to choose the moment.
func (a *Agent) Reconcile(ctx context.Context) {
	a.changes.AskFull()
	a.reconcile(ctx)
}

// reconcile is Reconcile, full or incremental as it was asked for.
func (a *Agent) reconcile(ctx context.Context) {
	a.work.Lock()
	defer a.work.Unlock()
	grace, cancel := context.WithTimeout(ctx, reconcileGrace)
	defer cancel()
	rec := a.reconcileOnce()
	for (rec.left || a.advance(grace, rec)) && ctx.Err() == nil {
		rec = a.reconcileOnce()
	}
	a.noteRest(rec)
	// Not after each look: all that is loaded by one Reconcile is reported once.
	select {
	case a.reconciled <- struct{}{}:
	default:
	}
}

// awaitWork waits until there may be something to do, and reports false when the
// context ends. Meanwhile the watch follows pins.
func (a *Agent) awaitWork(ctx context.Context, sweep <-chan time.Time, w *changes.Watch) bool {
	follow := time.After(w.FollowsIn())
	for {
		select {
		case <-ctx.Done():
			return false
		case <-sweep:
			if a.sweep() {
				return true
			}
		case <-a.changes.Signals():
			return true
		case <-a.changes.Hints():
			return true
		case <-a.loop.loads.Ended():
			return true
		case <-follow:
			w.FollowPins()
		}
	}
}

// Reconciled yields after a Reconcile; several since the last read count once. It
// is for one reader.
func (a *Agent) Reconciled() <-chan struct{} { return a.reconciled }

// Wake has Run look again, as after labels of namespaces changed (Options.NamespaceLabels).
func (a *Agent) Wake() { a.changes.Wake() }

// The bounds of a reconcile. A load cannot be cancelled while the verifier works, so
// every load runs beside the loop, and a reconcile waits only a little for it.
const (
	// reconcileGrace is how long a reconcile waits for objects and loads on their way.
	reconcileGrace = 250 * time.Millisecond
	// loadSlice is how long loads follow each other before the kernel is observed again, and how long hints wait for them.
	loadSlice = 50 * time.Millisecond
	// endingPause is how long a reconcile waits before it looks again for links that the
	// kernel ends in the background.
	endingPause = 20 * time.Millisecond
)

// advance starts the loads that a reconcile needs, one after the other, and waits for
// them, for objects and for links until the context ends. It reports whether another reconcile
// has something to do. A signal ends the wait at once, and a hint after a slice.
func (a *Agent) advance(ctx context.Context, p *reconcile) bool {
	if p.observed {
		if err := a.loop.loads.Keep(p.loadRound); err != nil {
			a.opts.Log.Error("free a load that is not needed any more", "error", err)
		}
	}
	a.loop.loads.Enqueue(p.loadRound.Queued)
	slice, fresh := a.opts.Clock().Add(a.loop.slice), false
	// A change of pods gives loads that long to end: what they load would wait for the reconcile that follows it.
	hints, patience := (<-chan struct{})(nil), time.After(a.loop.slice)
	for {
		waiting, found := a.loop.loads.StartNext()
		fresh = fresh || found
		if len(a.loop.loads.Current()) == 0 && (fresh || !p.objectRound.Fetching && !p.actor.IsEnding() && !p.actor.IsMaking()) {
			return fresh
		}
		var again <-chan time.Time
		if p.actor.IsEnding() {
			again = time.After(endingPause)
		}
		select {
		case <-a.loop.loads.Ended():
			fresh = a.loop.loads.Collect() || fresh
			if fresh && (waiting == 0 || !a.opts.Clock().Before(slice)) {
				return true
			}
		case <-a.changes.Signals():
			return true
		case <-hints:
			return true
		case <-patience:
			hints = a.changes.Hints()
		case <-again:
			return true
		case <-ctx.Done():
			return fresh
		}
	}
}
