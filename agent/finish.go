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
func (rec *reconcile) noteUnavailable(app *application, o intent.Opened, err error) {
	newest := o.Payload().Serial == app.Newest.Payload().Serial
	out := rec.outcomes[app.Newest.Payload().UID]
	unfit, late, noMemory := new(build.UnfitError), new(backingOffError), new(noMemoryError)
	switch {
	case isPending(err):
		return
	case errors.As(err, &noMemory):
	case errors.As(err, &late):
		err = late.err
	case errors.As(err, &unfit):
		rec.describeUnfit(app, unfit)
	default:
		rec.fail(app, o, err)
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
func (rec *reconcile) fail(app *application, o intent.Opened, err error) {
	payload := o.Payload()
	rec.outcomes[payload.UID].Tried = true
	app.rejected = maps.Clone(app.rejected)
	if app.rejected == nil {
		app.rejected = map[int64]error{}
	}
	app.rejected[payload.Serial], app.failedBefore = err, true
	if payload.Serial == app.Newest.Payload().Serial || app.log == "" {
		app.log = kernel.LogOf(err)
	}
	rec.opts.Log.Error("load", "application", payload.Application.String(), "serial", payload.Serial, "error", err)
}

// reject takes the version of an application that is to run out of this reconcile.
func (rec *reconcile) reject(uid string, err error) {
	rec.want.Applications = slices.DeleteFunc(rec.want.Applications, func(a plan.Application) bool { return a.UID == uid })
	app, was := rec.applicationOf(uid), rec.outcomes[uid]
	if app == nil {
		return
	}
	if isPending(err) && was.Live != nil {
		rec.awaited[[2]string{uid, was.Live.Revision()}] = true
	}
	newest := was.Live == nil || was.Live == &app.Newest
	rec.outcomes[uid] = &report.Outcome{Errs: was.Errs, Refused: true, Tried: was.Tried,
		Pending: was.Pending || newest && isPending(err), Loading: was.Loading || newest && errors.Is(err, loads.ErrLoading),
		Unsettled: isPending(err)}
	rec.noteUnavailable(app, *cmp.Or(was.Live, &app.Newest), err)
	if was.Live == &app.Newest {
		rec.fallBack(app)
		return
	}
	rec.keepOrUnload(uid, was.Live == nil || rec.node.StaysWithout(was.Live, rec.look.RevisionName(uid)) || isPending(err))
}

// finish writes what the reconcile found out back, and wakes who waits for it.
func (rec *reconcile) finish() {
	for index := range rec.chains.versions {
		rec.releaseChosen(index)
	}
	view := report.View{Look: rec.look, UnmanagedFiles: rec.unmanagedFiles, Now: rec.now}
	for _, app := range rec.apps {
		rec.finishApplication(app, view)
	}
	rec.conflicts.Sweep(rec.now)
	rec.targets.End()
	rec.pruneObjects()
	var orphans []ApplicationStatus
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(rec.want.Frozen, rec.live.WithRemnants())))) {
		if rec.applicationOf(uid) == nil {
			orphans = append(orphans, view.Orphan(uid, rec.outcomes[uid]))
		}
	}
	if rec.again {
		rec.wakeUp()
	}
	rec.accepted.mu.Lock()
	defer rec.accepted.mu.Unlock()
	rec.accepted.orphans = orphans
	all := version.SameLabels(rec.node.Labels, rec.accepted.labels)
	for _, app := range rec.apps {
		uid := app.Newest.Payload().UID
		now := rec.accepted.apps[uid]
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
		rec.accepted.apps[uid] = app
		if out := rec.outcomes[uid]; out == nil || out.Pending || out.Unsettled {
			all = false
		}
	}
	if all && len(rec.apps) == len(rec.accepted.apps) {
		select {
		case <-rec.accepted.settled:
		default:
			close(rec.accepted.settled)
		}
	}
}

// pruneObjects drops the cached objects of intents that were replaced.
func (rec *reconcile) pruneObjects() {
	if !rec.prune {
		return
	}
	rec.accepted.mu.Lock()
	defer rec.accepted.mu.Unlock()
	used := map[string]bool{}
	for _, app := range rec.accepted.apps {
		used[app.Newest.Payload().ObjectDigest] = true
	}
	for _, app := range rec.apps {
		payload := app.Newest.Payload()
		for _, version := range payload.Versions() {
			used[version.ObjectDigest] = true
		}
		if app.Deployed != nil {
			used[app.Deployed.Payload().ObjectDigest] = true
		}
	}
	if err := rec.objects.Prune(used); err != nil {
		rec.opts.Log.Error("drop cached objects", "error", err)
	}
}

// finishApplication works out back-off and status of one application.
func (rec *reconcile) finishApplication(app *application, view report.View) {
	payload := app.Newest.Payload()
	out := rec.outcomes[payload.UID]
	if out == nil {
		return
	}
	app.tried = payload.Serial
	switch {
	case len(out.Errs) == 0 && !out.Refused:
		app.failures, app.rejected, app.failed, app.log, app.failedBefore = 0, nil, nil, "", false
		rec.keepDeployed(app, out)
	case out.Tried:
		app.failures++
		app.retryAt = rec.now.Add(rec.opts.BackOff.After(app.failures))
	case len(out.Errs) == 0 && app.status.Error != "":
		// On its way: the old words stay.
		out.Errs = []error{&repeated{app.status.Error, app.status.Unsupported}}
	}
	app.status = view.Application(report.Application{Known: app.Known, Maps: app.maps, VerifierLog: app.log, Conflict: app.conflict, Before: app.status}, out)
	app.loaded = slices.Sorted(maps.Keys(rec.live.Revisions[payload.UID]))
	app.exhausted = payload.Tombstone && app.Deployed == nil && len(out.Errs) == 0 && !rec.leaves(payload.UID)
}

// keepDeployed remembers the intent that now runs in whole.
func (rec *reconcile) keepDeployed(app *application, out *report.Outcome) {
	payload := app.Newest.Payload()
	var err error
	switch {
	case (payload.Tombstone || len(payload.Programs) == 0) && app.Deployed != nil:
		if err = rec.dir.DropIntent(payload.UID, statedir.Deployed); err == nil {
			app.Deployed, rec.prune = nil, true
		}
	case out.Live != nil && (app.Deployed == nil || app.Deployed.Payload().Serial != payload.Serial):
		if err = rec.dir.PutIntent(payload.UID, statedir.Deployed, app.envelope); err == nil {
			o := app.Newest
			app.Deployed, rec.prune = &o, true
		}
	}
	if err != nil {
		rec.opts.Log.Error("remember what runs", "application", payload.Application.String(), "error", err)
	}
}
