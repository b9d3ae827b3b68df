package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/statedir"
)

// finish writes what the reconcile found out back, and wakes who waits for it.
func (rec *reconcile) finish() {
	// Last of all, when the status says what is attached.
	defer rec.letStart()
	view := report.View{Look: rec.look, UnmanagedFiles: rec.unmanagedFiles, Now: rec.decisions.Now}
	for _, app := range rec.apps {
		rec.finishApplication(app, view)
	}
	rec.loop.conflicts.Sweep(rec.decisions.Now)
	rec.lookupRound.End()
	rec.loop.namespaces.Close()
	rec.pruneObjects()
	orphans := rec.orphans(view)
	if rec.lookupRound.IsLeft() {
		rec.env.signal()
	}
	if rec.decisions.Again {
		rec.env.wakeUp()
	}
	rec.accepted.mu.Lock()
	defer rec.accepted.mu.Unlock()
	if rec.observed {
		rec.accepted.orphans = orphans
	}
	all := version.SameLabels(rec.decisions.Node.Labels, rec.accepted.labels)
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
		if out := rec.decisions.Outcomes[uid]; out == nil || !out.IsSettled() {
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

// orphans are the applications whose intent this node does not have.
func (rec *reconcile) orphans(view report.View) []ApplicationStatus {
	var orphans []ApplicationStatus
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(rec.decisions.Want.Frozen, rec.loop.live.Remnants.UIDs())))) {
		if rec.decisions.Application(uid) == nil {
			orphans = append(orphans, view.Orphan(uid, rec.decisions.Outcomes[uid]))
		}
	}
	return orphans
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
	if err := rec.objectRound.Cache.Prune(used); err != nil {
		rec.env.opts.Log.Error("drop cached objects", "error", err)
	}
}

// finishApplication works out back-off and status of one application.
func (rec *reconcile) finishApplication(app *application, view report.View) {
	payload := app.Newest.Payload()
	out := rec.decisions.Outcomes[payload.UID]
	if out == nil {
		return
	}
	out.SettlePods(payload.UID, func(program, hook string) bool { return rec.loop.live.IsInPod(payload.UID, program, hook) })
	rec.noteUnchangedChains(payload.UID, out)
	switch {
	case len(out.Errs) == 0 && out.Hindrance == nil:
		app.Failures, app.Rejected, app.FailedActions, app.VerifierLog, app.FailedBefore = 0, nil, nil, "", false
		rec.keepDeployed(app, out)
	case out.Tried:
		app.Failures++
		app.RetryAt = rec.decisions.Now.Add(rec.env.opts.BackOff.After(app.Failures))
	case len(out.Errs) == 0 && app.Status.Error != "" && !out.AwaitsMap():
		// On its way: the old words stay.
		out.Errs = []error{&repeated{app.Status.Error, app.Status.Unsupported}}
	}
	app.Status = view.Application(report.Application{Known: app.Known, Maps: app.Maps, VerifierLog: app.VerifierLog, Conflict: app.conflict, Before: app.Status},
		out)
	app.loaded = slices.Sorted(maps.Keys(rec.loop.live.Revisions[payload.UID]))
	app.exhausted = payload.Tombstone && app.Deployed == nil && len(out.Errs) == 0 && !rec.leaves(payload.UID)
}

// noteUnchangedChains notes the interfaces whose link was not given what the application asks for there, unless something
// else says why: only what the kernel took is Deployed.
func (rec *reconcile) noteUnchangedChains(uid string, out *report.Outcome) {
	if len(out.Errs) > 0 || out.Hindrance != nil {
		return
	}
	i := rec.decisions.IndexOf(uid)
	if i < 0 {
		return
	}
	asked := plan.Asked(plan.Want{Applications: rec.decisions.Want.Applications[i : i+1]})
	for _, device := range slices.SortedFunc(maps.Keys(asked), plan.Device.Compare) {
		if slices.Contains(plan.Changed(asked[device], rec.loop.live.GivenTo(device)), uid) {
			out.Errs = append(out.Errs, fmt.Errorf("change the chain of %s: the interface runs an earlier one", rec.look.InterfaceName(device)))
		}
	}
}

// keepDeployed remembers the intent that now runs in whole.
func (rec *reconcile) keepDeployed(app *application, out *report.Outcome) {
	payload := app.Newest.Payload()
	var err error
	switch {
	case (payload.Tombstone || len(payload.Programs) == 0) && app.Deployed != nil:
		if err = rec.env.dir.DropIntent(payload.UID, statedir.Deployed); err == nil {
			app.Deployed, rec.prune = nil, true
		}
	case out.Live != nil && (app.Deployed == nil || app.Deployed.Payload().Serial != payload.Serial):
		if err = rec.env.dir.PutIntent(payload.UID, statedir.Deployed, app.envelope); err == nil {
			o := app.Newest
			app.Deployed, rec.prune = &o, true
		}
	}
	if err != nil {
		rec.env.opts.Log.Error("remember what runs", "application", payload.Application.String(), "error", err)
	}
}

// leaves reports whether anything of an application is left on the node.
func (rec *reconcile) leaves(uid string) bool {
	return rec.loop.live.Has(uid) || len(rec.unmanagedFiles[uid]) > 0
}
