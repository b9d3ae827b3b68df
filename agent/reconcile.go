package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/history"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/report"
	"github.com/skep-dev/skep/agent/targets"
	"github.com/skep-dev/skep/agent/version"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
)

// reconcile is one look at the node and what follows from it. Its fields last as long.
type reconcile struct {
	*env
	*loop
	*decisions
	// accepted is read under its lock. Within a reconcile, only finish writes it.
	accepted *accepted
	// loads are those that the reconcile needs. fetching reports that an object is on its
	// way, and observed that the kernel could be read.
	loads              *loads.Round
	fetching, observed bool
	// ending reports that the kernel has yet to end links that were closed.
	ending bool
	// targets are the look-ups of this reconcile.
	targets *targets.Round
	// unmanagedFiles by the uid they lie under.
	unmanagedFiles map[string][]string
	chains         chainRound
	admission      admission
	// acted reports that the reconcile had actions to do.
	acted bool
	// prune tells that cached objects may have lost their last intent.
	prune bool
}

// chainRound is what one reconcile chose for the chains of interfaces, by index.
type chainRound struct {
	// versions are the chains that were loaded for it, and versionKeys name their loads;
	// a chain of one program has none.
	versions    map[int]*kernel.ChainVersion
	versionKeys map[int]string
	// visited are the interfaces whose chain was looked at. wanted is what is wanted where
	// a chain that was started comes first. behind are the interfaces where applications
	// wait until the chain of others is set.
	visited, behind map[int]bool
	wanted          map[int][]plan.Member
}

// admission is what one reconcile knows of the places that applications claim.
type admission struct {
	// present is what ran at each place when the reconcile began.
	present map[history.At]history.Record
	// pendingClaims are those of applications whose objects are on their way; nil
	// until they are asked for.
	pendingClaims map[plan.Place][]plan.Claim
	// lost are the places that others run at now which an application had before.
	lost map[history.At]bool
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
	rec.choose()
	rec.admit()
	rec.fitChains()
	actions := plan.Make(rec.want, rec.look.State)
	rec.acted = len(actions) > 0
	rec.act(actions)
	rec.finishUnloads()
	rec.admitLoads()
	rec.remember()
	return rec
}

// newReconcile begins a reconcile of the applications as they are now.
func (a *Agent) newReconcile() *reconcile {
	now := a.opts.Clock()
	apps, labels := a.snapshot()
	rec := &reconcile{env: a.env, loop: a.loop, accepted: a.accepted, targets: a.loop.lookups.Begin(now), loads: a.loop.queue.Begin(),
		admission: admission{lost: map[history.At]bool{}},
		chains: chainRound{versions: map[int]*kernel.ChainVersion{}, versionKeys: map[int]string{},
			visited: map[int]bool{}, behind: map[int]bool{}, wanted: map[int][]plan.Member{}}}
	rec.decisions = newDecisions(decisions{log: a.opts.Log, now: now, node: version.Node{Name: a.opts.Node, Labels: labels},
		look: a.loop.live.Look(), prepare: rec.prepareVersion, apps: apps})
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

// prepareVersion brings a version into the kernel and finds its targets.
func (rec *reconcile) prepareVersion(app *application, o intent.Opened, out *report.Outcome) (plan.Application, error) {
	if err := rec.ensureLoaded(app, o); err != nil {
		return plan.Application{}, err
	}
	return rec.resolveAttachments(o, out)
}

// ensureLoaded makes sure that the intent's revision is in the kernel, whole. One that was
// found pinned is relied on until it is checked.
func (rec *reconcile) ensureLoaded(app *application, o intent.Opened) error {
	uid, revision := o.Payload().UID, o.Revision()
	loaded := rec.live.Revisions[uid][revision]
	if err := rec.fits(app, o); err != nil {
		return err
	}
	if err := app.rejected[o.Payload().Serial]; err != nil && rec.now.Before(app.retryAt) {
		return &backingOffError{err}
	}
	if loaded != nil && app.checked[revision] {
		return nil
	}
	whole := false
	if loaded != nil {
		var err error
		if whole, err = rec.isWhole(o, loaded); errors.Is(err, loads.ErrLoading) {
			rec.outcomes[uid].Unsettled = true
			return nil
		} else if err != nil {
			return err
		}
	}
	if !whole {
		if err := rec.load(app, o); err != nil {
			return explain(o.Payload(), err)
		}
	}
	app.checked = with(app.checked, revision, true)
	return nil
}

// explain says which hook of the intent the kernel lacks, where it rejected to
// load a program for that.
func explain(payload intent.Payload, err error) error {
	if refused := new(kernel.LoadError); !errors.As(err, &refused) || refused.Log != "" {
		return err
	}
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			h, ok := hook.Lookup(at.Hook)
			if lacks := new(attach.LackingError); ok && errors.As(attach.Explain(h, err), &lacks) {
				return fmt.Errorf("load program %s of %s: %w", program.Name, payload.Application, lacks)
			}
		}
	}
	return err
}

func (rec *reconcile) logClose(what string, c io.Closer) {
	if err := c.Close(); err != nil {
		rec.opts.Log.Error("let go", "what", what, "error", err)
	}
}
