// Package finish works out how each application is after a reconcile: its back-off, its status, and whether its newest intent
// runs in whole. It must not touch the kernel, and decides nothing that this reconcile still does.
package finish

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/position"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/state/retry"
)

// Options are what one reconcile has. All are required.
type Options struct {
	Log *slog.Logger
	// Node is the node's name, for the log.
	Node string
	// BackOff is how long an application that failed waits.
	BackOff retry.BackOff
	// Intents has the applications, which Applications changes, and Decisions has the outcomes.
	Intents   *accepted.Round
	Decisions *decide.Decisions
	Look      *live.Look
	// Positions are where programs are to run among those of others.
	Positions *position.Round
	// UnmanagedFiles by the UID they lie under.
	UnmanagedFiles map[string][]string
}

// Round finishes one reconcile.
type Round struct {
	Options
	view report.View
}

// New begins to finish a reconcile.
func New(o Options) *Round {
	return &Round{o, report.View{Look: o.Look, Positions: o.Positions, UnmanagedFiles: o.UnmanagedFiles, Now: o.Decisions.Now}}
}

// Applications works out back-off and status of all applications.
func (r *Round) Applications() {
	for _, app := range r.Intents.Applications {
		r.application(app)
	}
}

// Orphans are the applications whose intent this node does not have.
func (r *Round) Orphans() []report.ApplicationStatus {
	var orphans []report.ApplicationStatus
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(r.Decisions.Want.Frozen, r.Look.Set.Remnants.UIDs())))) {
		if r.Decisions.Application(uid) == nil {
			orphans = append(orphans, r.view.Orphan(uid, r.Decisions.Outcomes[uid]))
		}
	}
	return orphans
}

// application works out back-off and status of one application.
func (r *Round) application(app *accepted.Application) {
	payload := app.Newest.Payload()
	out := r.Decisions.Outcomes[payload.UID]
	if out == nil {
		return
	}
	out.SettlePods(payload.UID, func(program, hook string) bool { return r.Look.IsInPod(payload.UID, program, hook) })
	r.noteUnchangedChains(payload.UID, out)
	behind := out.HasLeft(report.Behind{})
	switch {
	case out.IsWhole():
		app.Failures, app.Rejected, app.FailedActions, app.VerifierLog, app.FailedBefore = 0, nil, nil, "", false
		r.keepDeployed(app, out)
	case out.HasLeft(report.Retry{}):
		app.Failures++
		app.RetryAt = r.Decisions.Now.Add(r.BackOff.After(app.Failures))
	case len(out.Errs) == 0 && app.Status.Error != "" && !out.AwaitsMap() && (behind || !app.Behind):
		// On its way: the old words stay.
		out.Errs, behind = []error{&repeated{app.Status.Error, app.Status.Unsupported}}, app.Behind
	}
	app.Behind = behind
	before := app.Status
	app.Status = r.view.Application(report.Application{Known: app.Known, Maps: app.Maps, VerifierLog: app.VerifierLog,
		Rejected: app.Rejected[payload.Serial] != nil, Conflict: app.Conflict, Before: app.Status}, out)
	if !out.IsPending() {
		// The status of a version that is on its way has the words about the version before.
		r.logState(app, before)
	}
	app.Loaded = slices.Sorted(maps.Keys(r.Look.Revisions()[payload.UID]))
	app.Exhausted = payload.Tombstone && app.Deployed == nil && len(out.Errs) == 0 && !r.leaves(payload.UID)
}

// noteUnchangedChains notes the interfaces whose link was not given what the application asks for there, unless something
// else says why: only what the kernel took is Deployed.
func (r *Round) noteUnchangedChains(uid string, out *report.Outcome) {
	if !out.IsWhole() {
		return
	}
	i := r.Decisions.IndexOf(uid)
	if i < 0 {
		return
	}
	asked := plan.Asked(plan.Want{Applications: r.Decisions.Want.Applications[i : i+1]})
	for _, device := range slices.SortedFunc(maps.Keys(asked), plan.Device.Compare) {
		if slices.Contains(plan.Changed(asked[device], r.Look.GivenTo(device)), uid) {
			out.Errs = append(out.Errs, fmt.Errorf("change the chain of %s: the interface runs an earlier one", r.Look.InterfaceName(device)))
		}
	}
}

// keepDeployed remembers the intent that now runs in whole.
func (r *Round) keepDeployed(app *accepted.Application, out *report.Outcome) {
	payload := app.Newest.Payload()
	var err error
	switch out.State.(type) {
	case report.Unloading:
		if (payload.Tombstone || len(payload.Programs) == 0) && app.Deployed != nil {
			err = r.Intents.DropDeployed(app)
		}
	case report.Running:
		if app.Deployed == nil || app.Deployed.Payload().Serial != payload.Serial {
			err = r.Intents.KeepDeployed(app)
		}
	case report.FallingBack, report.Staying:
		// Never whole.
	}
	if err != nil {
		r.Log.Error("remember what runs", "application", payload.Application.String(), "error", err)
	}
}

// leaves reports whether anything of an application is left on the node.
func (r *Round) leaves(uid string) bool {
	return r.Look.Set.Has(uid) || len(r.UnmanagedFiles[uid]) > 0
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
