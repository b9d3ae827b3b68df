package agent

import (
	"cmp"
	"context"
	"slices"

	"github.com/skep-dev/skep/agent/history"
	"github.com/skep-dev/skep/agent/live"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/objects"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/targets"
	"github.com/skep-dev/skep/agent/version"
)

// reconcile is one look at the node and what follows from it. Its fields last as long.
type reconcile struct {
	*env
	*loop
	// apps are copies, until finish hands them over; ordered by name.
	apps []*application
	// accepted is read under its lock. Within a reconcile, only finish writes it.
	accepted *accepted
	// objects, loads and lookups are what the reconcile asks for.
	objects *objects.Round
	loads   *loads.Round
	lookups *targets.Round
	// observed reports that the kernel could be read.
	observed bool
	// unmanagedFiles by the uid they lie under.
	unmanagedFiles map[string][]string
	look           *live.Look
	decisions      *decisions
	chains         *chainRound
	actor          *actor
	admission      *admissionRound
	// acted reports that the reconcile had actions to do.
	acted bool
	// prune tells that cached objects may have lost their last intent.
	prune bool
}

// Reconcile looks, and does what is to be done: first what needs no load, then,
// for as long as reconcileGrace, one load after the other. What takes longer goes on
// beside it. Run calls it; a caller of its own needs it only to choose the moment.
func (a *Agent) Reconcile(ctx context.Context) {
	a.work.Lock()
	defer a.work.Unlock()
	grace, cancel := context.WithTimeout(ctx, reconcileGrace)
	defer cancel()
	rec := a.reconcileOnce()
	for a.advance(grace, rec) && ctx.Err() == nil {
		rec = a.reconcileOnce()
	}
	a.loop.idle = newIdle(rec)
	// Not after each look: all that is loaded by one Reconcile is reported once.
	select {
	case a.reconciled <- struct{}{}:
	default:
	}
}

// reconcileOnce looks once, and does what can be done without waiting for anything.
//
// Three rules hold. Among the actions, those that end something come first. No reading of an
// object and no load is before them, and look-ups delay them by a bounded time. The kernel's answer comes before bookkeeping: no link,
// revision or chain is forgotten before the kernel confirmed that it is gone. Nothing is
// written back to what was accepted before finish.
func (a *Agent) reconcileOnce() *reconcile {
	a.loop.queue.Collect()
	rec := a.newReconcile()
	defer rec.finish()
	rec.unmanagedFiles = rec.live.UnmanagedFiles()
	if err := rec.observe(); err != nil {
		a.opts.Log.Error("look at the kernel", "error", err)
		return rec
	}
	rec.observed = true
	rec.decisions.choose()
	rec.admission.admit()
	rec.chains.fit()
	actions := plan.Make(rec.decisions.want, rec.look.State)
	rec.acted = len(actions) > 0
	rec.actor.act(actions)
	rec.actor.finishUnloads()
	rec.admission.admitLoads()
	rec.admission.remember()
	return rec
}

// newReconcile begins a reconcile of the applications as they are now.
func (a *Agent) newReconcile() *reconcile {
	now := a.opts.Clock()
	apps, labels := a.snapshot()
	look, node := a.loop.live.Look(), version.Node{Name: a.opts.Node, Labels: labels}
	rec := &reconcile{apps: apps, look: look, env: a.env, loop: a.loop, accepted: a.accepted, objects: a.objects.Begin(), loads: a.loop.queue.Begin(), lookups: a.loop.lookups.Begin(now)}
	v := &versions{log: a.opts.Log, now: now, node: node, profile: a.opts.Profile, pins: a.pins, look: look,
		memory: a.loop.admission.memory, measured: a.loop.admission.profiles, objects: rec.objects, loads: rec.loads, lookups: rec.lookups}
	rec.decisions = newDecisions(decisions{log: a.opts.Log, now: now, node: node, look: look, prepare: v.prepare, applications: stateOf(apps)})
	rec.admission = &admissionRound{admission: a.loop.admission, now: now, decisions: rec.decisions, look: look, loads: rec.loads, lost: map[history.At]bool{}}
	rec.chains = newChainRound(chainRound{chains: a.loop.chains, now: now, decisions: rec.decisions, admission: rec.admission, look: look, objects: rec.objects, loads: rec.loads})
	rec.actor = &actor{log: a.opts.Log, clock: a.opts.Clock, now: now, observer: a.opts.Observer, pins: a.pins, decisions: rec.decisions, look: look,
		chains: rec.chains, attempts: a.loop.chains.attempts, conflicts: a.loop.conflicts, measured: a.loop.admission.profiles,
		objects: rec.objects, loads: rec.loads, lookups: rec.lookups}
	return rec
}

// snapshot copies what Accept and Relabel may change meanwhile; applications
// are ordered by name.
func (a *Agent) snapshot() ([]*application, map[string]string) {
	a.intake.Lock()
	defer a.intake.Unlock()
	a.accepted.mu.Lock()
	defer a.accepted.mu.Unlock()
	apps := make([]*application, 0, len(a.accepted.apps))
	for _, app := range a.accepted.apps {
		one := *app
		apps = append(apps, &one)
	}
	slices.SortFunc(apps, func(x, y *application) int {
		p, q := x.Newest.Payload(), y.Newest.Payload()
		return cmp.Or(cmp.Compare(p.Application.String(), q.Application.String()), cmp.Compare(p.UID, q.UID))
	})
	return apps, a.accepted.labels
}

// stateOf are the applications as the parts of a reconcile see them.
func stateOf(apps []*application) []*Application {
	all := make([]*Application, len(apps))
	for i, app := range apps {
		all[i] = &app.Application
	}
	return all
}

// observe repairs pins and reads what is in the kernel.
func (rec *reconcile) observe() error {
	rec.live.Repin(rec.repinned)
	interfaces, err := targets.Interfaces(wantsPrimary(rec.apps), rec.running())
	if err != nil {
		return err
	}
	rec.look.Observe(interfaces)
	return nil
}

// repinned notes that a pin was made again, or could not be.
func (rec *reconcile) repinned(what string, made bool, err error) {
	switch {
	case err != nil:
		rec.opts.Log.Error("pin again", "what", what, "error", err)
	case made:
		rec.opts.Observer.Healed(Unpinned)
		rec.opts.Log.Warn("pinned again what was removed", "what", what)
	}
}
