package application

import (
	"context"
	"fmt"
	"strconv"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/rollout"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
)

// stamp is what an intent by a verdict carries beside it: the steps of a version
// that is new, or how far one has come that is not.
//
// A new version takes the place of one that was under way: what was before that
// one stays what was before. A version that was before is brought back at once.
func (r *Reconciler) stamp(ctx context.Context, app application, mine sealed, s gate.Standing) (gate.Stamp, error) {
	stamp, live := gate.Stamp{UID: string(app.GetUID())}, mine.payload
	through := ""
	if live != nil && !live.Tombstone {
		if s.Verdict.SameVersion(*live) {
			stamp.Version, stamp.Rollout = live.VersionSerial(), live.Rollout
			if live.Undone == 0 {
				// Of what was undone, the version before is the one to be rid of.
				stamp.Previous = live.Previous
			}
			return stamp, nil
		}
		before := settled(live)
		switch {
		case before == nil:
			through = live.Rollout.Through
		case s.Verdict.SameVersion(*before):
			// What a node cannot have at once it goes on without.
			if now := live.Alone(); r.keeps(ctx, app, s.Request, now) {
				stamp.Previous = &now
			}
			return stamp, nil
		case !r.keeps(ctx, app, s.Request, *before):
			// There is nothing to hold nodes at.
			return stamp, nil
		}
		stamp.Previous = before
	}
	if live == nil && mine.runs {
		// Nodes run it, or what it takes the place of, and would lose it meanwhile.
		return stamp, nil
	}
	fleet, err := r.fleet(ctx, app, s.Verdict.Version(), s)
	if err != nil {
		return stamp, err
	}
	stamp.Rollout = fleet.Start(through)
	return stamp, nil
}

// settled is the newest version that came to every node it was meant for; nil
// where none did.
func settled(live *intent.Payload) *intent.Payload {
	if live.Rollout != nil {
		return live.Previous
	}
	before := live.Alone()
	before.Undone = 0
	return &before
}

// keeps tells whether a version that nodes are held at may go on.
func (r *Reconciler) keeps(ctx context.Context, app application, request gate.Request, before intent.Payload) bool {
	keeps := func(braked bool) bool { return r.Judge.Keeps(ctx, request, before, r.Keeper.Revoked(), braked) }
	if braked, free := keeps(true), keeps(false); braked == free {
		return free
	}
	// It is for the brake alone to say. What cannot be counted is held.
	_, held, err := r.Keeper.Holds(ctx, app.Identity())
	return held || err != nil
}

// fleet orders the nodes that a version is meant for.
func (r *Reconciler) fleet(ctx context.Context, app application, version intent.Payload, s gate.Standing) (rollout.Fleet, error) {
	nodes, err := r.nodes(ctx)
	if err != nil {
		return rollout.Fleet{}, err
	}
	version.UID = string(app.GetUID())
	answers, err := status.Answers(wanted(version, s), nodes)
	return rollout.Of(app.Body().Rollout, version.UID, answers), err
}

// roll moves a rollout that can go on, and tells how it stands.
func (r *Reconciler) roll(ctx context.Context, app application, mine sealed, s gate.Standing, hold string) (sealed, rollout.Progress, error) {
	live := mine.payload
	if s.Undone {
		message := "the version before was brought back to every node; change the definition, or see skep rollout resume"
		if live.Tombstone {
			message = "it was rolled back, and the version before may run no more; change the definition, or see skep rollout resume"
		}
		return mine, rollout.Progress{Status: v1alpha1.RolloutStatus{State: v1alpha1.RolloutRolledBack, Message: message}}, nil
	}
	if hold != "" && (live == nil || live.Rollout == nil) {
		return mine, rollout.Progress{Status: v1alpha1.RolloutStatus{State: v1alpha1.RolloutStopped, Message: hold}}, nil
	}
	if live == nil || live.Tombstone || live.Rollout == nil {
		return mine, rollout.Progress{}, nil
	}
	fleet, err := r.fleet(ctx, app, *live, s)
	if err != nil {
		return mine, rollout.Progress{}, err
	}
	resumed := app.GetAnnotations()[v1alpha1.AnnotationResume] == strconv.FormatInt(live.Serial, 10)
	progress := fleet.Look(*live.Rollout, time.UnixMilli(live.VersionSerial()), r.now().Sub(time.UnixMilli(live.Serial)), resumed)
	if hold != "" {
		progress.Moves, progress.Status.State, progress.Status.Message = false, v1alpha1.RolloutStopped, hold
	}
	stamp := gate.Stamp{UID: live.UID, Version: live.VersionSerial(), Rollout: live.Rollout, Previous: live.Previous}
	if progress.Moves {
		stamp.Rollout = progress.Next
	}
	if live.Previous != nil && !r.keeps(ctx, app, s.Request, *live.Previous) {
		mine, err = r.forsake(ctx, mine)
		return mine, progress, err
	}
	// What is frozen does not move either.
	if !progress.Moves || s.Err != nil || app.Body().Suspend || !s.Verdict.Same(*live) {
		return mine, progress, nil //nolint:nilerr // what cannot be judged does not move
	}
	ctrl.LoggerFrom(ctx).Info("rollout moves on", "application", live.Application.String(), "step", stamp.Rollout)
	mine, err = r.seal(ctx, mine, s.Verdict, stamp, mine.object.Annotations[annotationCRD])
	if err != nil || stamp.Rollout == nil {
		return mine, rollout.Progress{}, err
	}
	return mine, fleet.Look(*stamp.Rollout, time.UnixMilli(stamp.Version), 0, false), nil
}

// forsake has nodes hold the version before no more, though the definition may be
// suspended, broken or out of reach.
func (r *Reconciler) forsake(ctx context.Context, mine sealed) (sealed, error) {
	envelope, err := gate.Forsake(r.Keys().Sealer, *mine.payload, r.serial(mine))
	if err != nil {
		return mine, err
	}
	ctrl.LoggerFrom(ctx).Info("the version before may run no more, and is unloaded where nodes are held at it", "application", mine.payload.Application.String())
	return r.put(ctx, mine, envelope, mine.object.Annotations[annotationCRD])
}

// back takes a version that may not run from the nodes that its rollout came to,
// where the one before may run: false where all is to be unloaded.
func (r *Reconciler) back(ctx context.Context, mine sealed, s gate.Standing) (sealed, bool, error) {
	live := mine.payload
	if s.Unloads() || !s.Runs() || live.Rollout == nil || live.Previous == nil {
		return mine, false, nil
	}
	v, err := r.Judge.Rejudge(ctx, s.Request, *live.Previous)
	if err != nil || !v.Allowed() {
		return mine, false, nil //nolint:nilerr // what cannot be judged is not brought back
	}
	mine, err = r.seal(ctx, mine, v, gate.Stamp{UID: live.UID}, mine.object.Annotations[annotationCRD])
	return mine, true, err
}

// undo brings the version before back to every node, where people asked for
// that of the definition as it is. What runs then is judged by itself, and what
// was unloaded since stays so. hold is why it could not be done: the rollout goes
// no further then either.
func (r *Reconciler) undo(ctx context.Context, app application, mine sealed, s *gate.Standing) (now sealed, hold string, err error) {
	generation, live := app.GetGeneration(), mine.payload
	if live == nil || app.GetAnnotations()[v1alpha1.AnnotationUndo] != strconv.FormatInt(generation, 10) {
		return mine, "", nil
	}
	if live.Undone != generation {
		before, stamp := live.Previous, gate.Stamp{UID: live.UID, Undone: generation}
		if live.Undone != 0 {
			// An older definition was undone, and nothing came after it.
			before, stamp.Version, stamp.Previous = live, live.VersionSerial(), live.Previous
		} else if undone := live.Alone(); !live.Tombstone {
			stamp.Previous = &undone
		}
		if live.Tombstone || before == nil {
			return mine, "", nil
		}
		v, err := r.Judge.Rejudge(ctx, s.Request, *before)
		switch {
		case err != nil:
			return mine, fmt.Sprintf("the version before cannot be judged, and is not brought back yet: %v", err), nil
		case !v.Allowed():
			return mine, "the version before is not allowed any more, and cannot be brought back: change the definition, or see skep rollout resume", nil
		}
		if mine, err = r.seal(ctx, mine, v, stamp, mine.object.Annotations[annotationCRD]); err != nil {
			return mine, "", err
		}
		s.Live = mine.payload
	}
	s.Undone = true
	s.Held = r.Judge.Hold(ctx, *s)
	return mine, "", nil
}
