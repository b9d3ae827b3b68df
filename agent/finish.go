package agent

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/starts"
	"github.com/skep-dev/skep/agent/state/statedir"
)

// finish writes what the reconcile found out back, and wakes who waits for it.
func (rec *reconcile) finish() {
	// Last of all, when the status says what is attached.
	defer rec.env.starts.Finish(starts.Round{Decisions: rec.decisions, Set: rec.loop.live, Containers: rec.seen.Pods.Snapshot, Loads: rec.loadRound})
	view := report.View{Look: rec.look, UnmanagedFiles: rec.unmanagedFiles, Now: rec.decisions.Now}
	for _, app := range rec.intents.Applications {
		rec.finishApplication(app, view)
	}
	rec.loop.conflicts.Sweep(rec.decisions.Now)
	rec.lookupRound.End()
	rec.loop.namespaces.Close()
	rec.pruneObjects()
	orphans := rec.orphans(view)
	if rec.lookupRound.IsLeft() {
		rec.env.changes.Signal()
	}
	if rec.decisions.Again {
		rec.env.changes.Wake()
	}
	rec.intents.Finish(accepted.Findings{Outcomes: rec.decisions.Outcomes, Orphans: orphans, Observed: rec.observed})
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
	if err := rec.intents.Prune(rec.objectRound.Cache); err != nil {
		rec.env.opts.Log.Error("drop cached objects", "error", err)
	}
}

// finishApplication works out back-off and status of one application.
func (rec *reconcile) finishApplication(app *accepted.Application, view report.View) {
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
	app.Status = view.Application(report.Application{Known: app.Known, Maps: app.Maps, VerifierLog: app.VerifierLog, Conflict: app.Conflict, Before: app.Status},
		out)
	app.Loaded = slices.Sorted(maps.Keys(rec.loop.live.Revisions[payload.UID]))
	app.Exhausted = payload.Tombstone && app.Deployed == nil && len(out.Errs) == 0 && !rec.leaves(payload.UID)
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
func (rec *reconcile) keepDeployed(app *accepted.Application, out *report.Outcome) {
	payload := app.Newest.Payload()
	var err error
	switch {
	case (payload.Tombstone || len(payload.Programs) == 0) && app.Deployed != nil:
		if err = rec.env.dir.DropIntent(payload.UID, statedir.Deployed); err == nil {
			app.Deployed, rec.prune = nil, true
		}
	case out.Live != nil && (app.Deployed == nil || app.Deployed.Payload().Serial != payload.Serial):
		if err = rec.env.dir.PutIntent(payload.UID, statedir.Deployed, app.Envelope); err == nil {
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

// repeated is what was said at the last attempt, while the next one is waited
// for.
type repeated struct {
	text        string
	unsupported bool
}

// Error implements error.
func (r *repeated) Error() string { return r.text }

// Is keeps what the words alone do not tell.
func (r *repeated) Is(target error) bool { return r.unsupported && target == ebpf.ErrNotSupported }
