package agent

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/skep-dev/skep/agent/build"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/report"
	"github.com/skep-dev/skep/agent/statedir"
	"github.com/skep-dev/skep/agent/version"
	"github.com/skep-dev/skep/intent"
)

// backingOffError: the version could not be had a short while ago, for err.
type backingOffError struct{ err error }

// Error implements error.
func (b *backingOffError) Error() string { return b.err.Error() }

// Unwrap returns why.
func (b *backingOffError) Unwrap() error { return b.err }

// noteUnavailable notes why a version cannot be had: the newest intent's, or one that
// would have taken its place. What is no matter of the kernel's profile or of the memory
// for maps is not tried again before a while.
func (p *reconcile) noteUnavailable(app *application, o intent.Opened, err error) {
	newest := o.Payload().Serial == app.Newest.Payload().Serial
	out := p.outcomes[app.Newest.Payload().UID]
	unfit, late, noMemory := new(build.UnfitError), new(backingOffError), new(noMemoryError)
	switch {
	case isPending(err):
		return
	case errors.As(err, &noMemory):
	case errors.As(err, &late):
		err = late.err
	case errors.As(err, &unfit):
		p.describeUnfit(app, unfit)
	default:
		p.fail(app, o, err)
	}
	switch {
	case newest:
		out.Errs = append(out.Errs, err)
	case !out.Pending:
		// Its words alone: what it lacks is not what the newest version lacks.
		out.Errs = append(out.Errs, errors.New("go on with the version before: "+err.Error()))
	}
}

// fail notes what was tried in vain.
func (p *reconcile) fail(app *application, o intent.Opened, err error) {
	payload := o.Payload()
	p.outcomes[payload.UID].Tried = true
	app.refused = maps.Clone(app.refused)
	if app.refused == nil {
		app.refused = map[int64]error{}
	}
	app.refused[payload.Serial], app.failedBefore = err, true
	if payload.Serial == app.Newest.Payload().Serial || app.log == "" {
		app.log = kernel.LogOf(err)
	}
	p.opts.Log.Error("load", "application", payload.Application.String(), "serial", payload.Serial, "error", err)
}

// refuse takes the version of an application that is to run out of this reconcile.
func (p *reconcile) refuse(uid string, err error) {
	p.want.Applications = slices.DeleteFunc(p.want.Applications, func(a plan.Application) bool { return a.UID == uid })
	app, was := p.applicationOf(uid), p.outcomes[uid]
	if app == nil {
		return
	}
	if isPending(err) && was.Live != nil {
		p.awaited[[2]string{uid, was.Live.Revision()}] = true
	}
	newest := was.Live == nil || was.Live == &app.Newest
	p.outcomes[uid] = &report.Outcome{Errs: was.Errs, Refused: true, Tried: was.Tried,
		Pending: was.Pending || newest && isPending(err), Loading: was.Loading || newest && errors.Is(err, loads.ErrLoading),
		Unsettled: isPending(err)}
	p.noteUnavailable(app, *cmp.Or(was.Live, &app.Newest), err)
	if was.Live == &app.Newest {
		p.fallBack(app)
		return
	}
	p.keepOrUnload(uid, was.Live == nil || p.node.StaysWithout(was.Live, p.look.RevisionName(uid)) || isPending(err))
}

// finish writes what the reconcile found out back, and wakes who waits for it.
func (p *reconcile) finish() {
	for index := range p.chains.versions {
		p.releaseChosen(index)
	}
	view := report.View{Look: p.look, UnmanagedFiles: p.unmanagedFiles, Now: p.now}
	for _, app := range p.apps {
		p.finishApplication(app, view)
	}
	p.conflicts.Sweep(p.now)
	p.targets.End()
	p.pruneObjects()
	var orphans []ApplicationStatus
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(p.want.Frozen, p.live.WithRemnants())))) {
		if p.applicationOf(uid) == nil {
			orphans = append(orphans, view.Orphan(uid, p.outcomes[uid]))
		}
	}
	if p.again {
		p.wakeUp()
	}
	p.accepted.mu.Lock()
	defer p.accepted.mu.Unlock()
	p.accepted.orphans = orphans
	all := version.SameLabels(p.node.Labels, p.accepted.labels)
	for _, app := range p.apps {
		uid := app.Newest.Payload().UID
		now := p.accepted.apps[uid]
		if now == nil {
			// Forgotten meanwhile.
			continue
		}
		if now.Newest.Payload().Serial != app.Newest.Payload().Serial {
			// Overtaken meanwhile. What now runs is what the newer one falls back to.
			now.inherit(app)
			all = false
			continue
		}
		app.unkept, app.envelope = now.unkept, now.envelope
		if !errors.Is(app.conflict, now.conflict) {
			// The next reconcile reports it.
			app.conflict, all = now.conflict, false
		}
		p.accepted.apps[uid] = app
		if out := p.outcomes[uid]; out == nil || out.Pending || out.Unsettled {
			all = false
		}
	}
	if all && len(p.apps) == len(p.accepted.apps) {
		select {
		case <-p.accepted.settled:
		default:
			close(p.accepted.settled)
		}
	}
}

// pruneObjects drops the cached objects of intents that were replaced.
func (p *reconcile) pruneObjects() {
	if !p.prune {
		return
	}
	p.accepted.mu.Lock()
	defer p.accepted.mu.Unlock()
	used := map[string]bool{}
	for _, app := range p.accepted.apps {
		used[app.Newest.Payload().ObjectDigest] = true
	}
	for _, app := range p.apps {
		payload := app.Newest.Payload()
		for _, version := range payload.Versions() {
			used[version.ObjectDigest] = true
		}
		if app.Deployed != nil {
			used[app.Deployed.Payload().ObjectDigest] = true
		}
	}
	if err := p.objects.Prune(used); err != nil {
		p.opts.Log.Error("drop cached objects", "error", err)
	}
}

// finishApplication works out back-off and status of one application.
func (p *reconcile) finishApplication(app *application, view report.View) {
	payload := app.Newest.Payload()
	out := p.outcomes[payload.UID]
	if out == nil {
		return
	}
	app.tried = payload.Serial
	switch {
	case len(out.Errs) == 0 && !out.Refused:
		app.failures, app.refused, app.failed, app.log, app.failedBefore = 0, nil, nil, "", false
		p.keepDeployed(app, out)
	case out.Tried:
		app.failures++
		app.retryAt = p.now.Add(p.opts.BackOff.After(app.failures))
	case len(out.Errs) == 0 && app.status.Error != "":
		// On its way: the old words stay.
		out.Errs = []error{&repeated{app.status.Error, app.status.Unsupported}}
	}
	app.status = view.Application(report.Application{Known: app.Known, Maps: app.maps, VerifierLog: app.log, Conflict: app.conflict, Before: app.status}, out)
	app.loaded = slices.Sorted(maps.Keys(p.live.Revisions[payload.UID]))
	app.exhausted = payload.Tombstone && app.Deployed == nil && len(out.Errs) == 0 && !p.leaves(payload.UID)
}

// keepDeployed remembers the intent that now runs in whole.
func (p *reconcile) keepDeployed(app *application, out *report.Outcome) {
	payload := app.Newest.Payload()
	var err error
	switch {
	case (payload.Tombstone || len(payload.Programs) == 0) && app.Deployed != nil:
		if err = p.dir.DropIntent(payload.UID, statedir.Deployed); err == nil {
			app.Deployed, p.prune = nil, true
		}
	case out.Live != nil && (app.Deployed == nil || app.Deployed.Payload().Serial != payload.Serial):
		if err = p.dir.PutIntent(payload.UID, statedir.Deployed, app.envelope); err == nil {
			o := app.Newest
			app.Deployed, p.prune = &o, true
		}
	}
	if err != nil {
		p.opts.Log.Error("remember what runs", "application", payload.Application.String(), "error", err)
	}
}
