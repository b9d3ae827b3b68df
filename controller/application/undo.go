package application

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/rollout"
	"github.com/skep-dev/skep/gate"
)

// applyRequests does what people ask for by annotations, and notes why no version is rolled
// out (blocked), if there is a reason. What runs is evaluated by itself in both cases.
func (r *Reconciler) applyRequests(ctx context.Context, st *state) (err error) {
	st.blocked, err = r.undo(ctx, st)
	if err == nil && st.blocked.State == "" {
		st.blocked, err = st.lostIntentReason(&r.generations)
	}
	if err == nil && st.blocked.State == "" {
		st.blocked, err = st.noMatchingNodesReason()
	}
	if err != nil {
		return err
	}
	if st.blocked.State != "" && (st.sealed.Payload == nil || st.sealed.IsBehindNodes()) {
		st.blocked.Message += "; " + runsOn
	}
	if st.observed.Frozen = st.blocked.State != ""; st.observed.Frozen || st.observed.Undone {
		r.verdicts().running(ctx, &st.observed)
	}
	return nil
}

// undo brings the previous version back to every node, if people asked for that of this
// definition. It stays undone while it is suspended or its steps change: the intent
// records an undo that was done, and the status one that was not. What was unloaded
// since stays unloaded. blocked is why it could not be done; the rollout stops then too.
func (r *Reconciler) undo(ctx context.Context, st *state) (blocked v1alpha1.RolloutStatus, err error) {
	live := st.sealed.Payload
	generation, err := gate.Generation(st.app)
	if err != nil {
		return blocked, err
	}
	wanted, reported := r.generations.wantsUndo(st.app, generation), st.app.Report().Rollout
	if live == nil || st.app.GetAnnotations()[v1alpha1.AnnotationUndo] == "" {
		return blocked, nil
	}
	done := live.Undone == generation
	if !done && !wanted && (reported == nil || reported.BlockedDefinition != generation) {
		return blocked, nil
	}
	if ahead, _ := nodesAreAhead(st.sealed, r.now()); !done || ahead && !live.Tombstone && !st.app.Body().Suspend {
		if why, err := r.sealUndo(ctx, st, generation); why != "" || err != nil {
			return v1alpha1.RolloutStatus{State: v1alpha1.RolloutStopped, Message: why, BlockedDefinition: generation}, err
		}
		st.observed.Live, st.observed.Running = st.sealed.Payload, gate.RunningVerdict{}
	}
	st.observed.Undone = true
	return blocked, nil
}

// nothingBefore is why an undo cannot be done.
const nothingBefore = "there is no version before to bring back: change the definition, or see skep rollout resume"

// sealUndo seals what an undo of the definition of a generation brings back. why is why
// it does not.
func (r *Reconciler) sealUndo(ctx context.Context, st *state, generation int64) (why string, err error) {
	live := st.sealed.Payload
	before := rollout.UndoTarget(generation, live)
	switch {
	case st.app.Body().Suspend:
		return "the application is suspended, and the version before comes back once it is not", nil
	case live.Tombstone || before == nil:
		return nothingBefore, nil
	}
	if before != live {
		if why, err := st.matchesNoNode(*before); err != nil || why != "" {
			return "the version before is not brought back: " + why + "; change the definition, or see skep rollout resume", err
		}
	}
	narrowed, _ := before.Narrowed(st.app.Body().Maps)
	v, err := r.verdicts().again(ctx, st.observed.Request, narrowed)
	switch {
	case err != nil:
		return fmt.Sprintf("the version before cannot be evaluated, and is not brought back yet: %v", err), nil
	case !v.Allowed():
		return "the version before is not allowed any more, and cannot be brought back: change the definition, or see skep rollout resume", nil
	}
	stamp := gate.Stamp{UID: live.UID, Version: before.VersionSerial(), Previous: before.Previous, Withdrawn: live.Withdrawn, Undone: generation}
	if before != live {
		stamp.Withdrawn = r.withdrawn(ctx, st, before)
	}
	st.sealed, err = r.Intents.Seal(ctx, st.sealed, v, stamp, st.sealed.CRD())
	if errors.Is(err, intents.ErrUnsealable) {
		return "the version before is not brought back: " + err.Error(), nil
	}
	return "", err
}

// lostIntentReason is why a version is not rolled out whose intent was lost, and with it
// that it was undone or stopped. Its status and annotations are what is left of that. A
// version that came to no node was stopped by nobody. BlockedDefinition is the negative of the
// generation for a version that was stopped and not undone: an old undo annotation is
// not of it, should the intent come back.
func (st *state) lostIntentReason(known *generations) (blocked v1alpha1.RolloutStatus, err error) {
	generation, err := gate.Generation(st.app)
	report := st.app.Report()
	if err != nil || st.sealed.Payload != nil || resumed(st.app, report.Serial) {
		return blocked, err
	}
	reported, current := cmp.Or(report.Rollout, &v1alpha1.RolloutStatus{}), report.ObservedGeneration == st.app.GetGeneration()
	undone := reported.BlockedDefinition == generation || current && reported.State == v1alpha1.RolloutRolledBack ||
		st.lost() && known.wantsUndo(st.app, generation)
	stopped := reported.BlockedDefinition == -generation || current && reported.State == v1alpha1.RolloutStopped
	switch {
	case undone:
		blocked.BlockedDefinition = generation
	case stopped:
		blocked.BlockedDefinition = -generation
	default:
		return blocked, nil
	}
	blocked.State = v1alpha1.RolloutStopped
	blocked.Message = "it was undone or stopped, and its intent was lost since: change the definition, or have it rolled out by skep rollout resume"
	return blocked, nil
}

// resumed reports whether people asked for a step to count as done: serial is that of
// the newest intent.
func resumed(app application, serial int64) bool {
	return app.GetAnnotations()[v1alpha1.AnnotationResume] == strconv.FormatInt(serial, 10)
}

// runsOn is what becomes of what nodes run by an intent that is not there any more.
const runsOn = "of an intent that was lost, what runs goes on, whatever is revoked"

// wantsUndo reports whether people asked for an undo of what an application asks for.
func (g *generations) wantsUndo(app application, definition int64) bool {
	since := g.firstSeen(app, definition)
	asked, err := strconv.ParseInt(app.GetAnnotations()[v1alpha1.AnnotationUndo], 10, 64)
	return err == nil && since <= asked && asked <= app.GetGeneration()
}
