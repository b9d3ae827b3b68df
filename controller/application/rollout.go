package application

import (
	"context"
	"errors"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/rollout"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
)

// fleet orders the nodes that a version is meant for.
func (st *state) fleet(version intent.Payload) (rollout.Fleet, error) {
	version.UID = string(st.app.GetUID())
	nodes, err := st.nodes.Nodes()
	if err != nil {
		return rollout.Fleet{}, err
	}
	answers, err := status.Answers(wanted(version, st.observed), nodes)
	return rollout.Of(st.app.Body().Rollout, version.UID, answers), err
}

// advanceRollout takes the next step of a rollout, if it can go on, and notes its progress.
func (r *Reconciler) advanceRollout(ctx context.Context, st *state) error {
	live, o := st.sealed.Payload, st.observed
	var rests bool
	if st.progress, rests = rollout.AtRest(live, o.Undone, st.sealed.IsBehindNodes(), st.blocked); rests {
		return nil
	}
	if err := r.gatherNodes(ctx, st); err != nil {
		return err
	}
	fleet, err := st.fleet(*live)
	if err != nil {
		return err
	}
	st.progress = fleet.Look(*live, r.now(), resumed(st.app, live.Serial))
	if b := st.blocked; b.State != "" {
		st.progress.Moves = false
		st.progress.Status.State, st.progress.Status.Message, st.progress.Status.BlockedDefinition = b.State, b.Message, b.BlockedDefinition
	}
	// What cannot be evaluated does not move, nor what is denied or suspended.
	if !st.progress.Moves || o.Err != nil || st.app.Body().Suspend || !o.Verdict.Same(*live) {
		return nil //nolint:nilerr // What could not be evaluated is told by describe.
	}
	stamp := gate.Stamp{UID: live.UID, Version: live.VersionSerial(), Rollout: st.progress.Next, Previous: live.Previous, Withdrawn: live.Withdrawn}
	ctrl.LoggerFrom(ctx).Info("rollout moves on", "application", live.Application.String(), "step", stamp.Rollout)
	st.progress = rollout.Progress{}
	st.sealed, err = r.Intents.Seal(ctx, st.sealed, o.Verdict, stamp, st.sealed.CRD())
	if err == nil && stamp.Rollout != nil {
		st.progress = fleet.Look(*st.sealed.Payload, r.now(), false)
	}
	return err
}

// rollBack takes a version that may not run from the nodes that its rollout reached, if the
// previous version may run. It returns false if all is to be unloaded. The previous
// version replaces it for good once it can be evaluated, and would be admitted.
func (r *Reconciler) rollBack(ctx context.Context, st *state) (rolledBack bool, err error) {
	live := st.sealed.Payload
	if !st.observed.Runs() || live.Rollout == nil || live.Previous == nil {
		return false, nil
	}
	narrowed, _ := live.Previous.Narrowed(st.app.Body().Maps)
	if v, err := r.verdicts().again(ctx, st.observed.Request, narrowed); err == nil && v.Allowed() {
		now, err := r.Intents.Seal(ctx, st.sealed, v, gate.Stamp{
			UID: live.UID, Version: live.Previous.VersionSerial(), Withdrawn: r.withdrawn(ctx, st, live.Previous, live),
		}, st.sealed.CRD())
		if !errors.Is(err, intents.ErrUnsealable) {
			st.sealed = now
			return true, err
		}
	}
	switch {
	case !r.verdicts().mayKeep(ctx, st.observed.Request, *live.Previous):
		return false, nil
	case live.Rollout.Through == "":
		return true, nil
	}
	st.sealed, err = r.Intents.WithdrawRollout(ctx, st.sealed)
	return true, err
}

// noMatchingNodesReason is why a version that matches no node is not sealed, although it is
// allowed: nodes may run what it replaces, and would unload that at once. No node would
// keep a version, since an intent was lost, since the first version is being rolled out,
// or since it is the previous version, which has no steps.
func (st *state) noMatchingNodesReason() (blocked v1alpha1.RolloutStatus, err error) {
	live, o := st.sealed.Payload, st.observed
	unloads := st.lost() || live != nil && !o.Verdict.SameVersion(*live) &&
		(st.sealed.IsBehindNodes() || o.Runs() && (rollout.LastEverywhere(live) == nil || reverts(o.Verdict, live)))
	if !unloads || !o.Verdict.Allowed() || resumed(st.app, st.app.Report().Serial) {
		return blocked, nil
	}
	why, err := st.matchesNoNode(o.Verdict.Version())
	if err != nil || why == "" {
		return blocked, err
	}
	return v1alpha1.RolloutStatus{State: v1alpha1.RolloutNoMatchingNodes, Message: rollout.HeldBack(why)}, nil
}

// matchesNoNode is why a version comes to no node, where nodes may run what it replaces;
// empty if it comes to some, or nothing would be unloaded.
func (st *state) matchesNoNode(version intent.Payload) (why string, err error) {
	fleet, err := st.fleet(version)
	if err != nil || fleet.Empty() == "" {
		return "", err
	}
	if unloads, err := st.nodesWouldUnload(); err != nil || !unloads {
		return "", err
	}
	return fleet.Empty(), nil
}

// nodesWouldUnload reports whether nodes would unload something that is sealed, or may: they
// report that they run something, or should run it and have not reported on it.
func (st *state) nodesWouldUnload() (bool, error) {
	s := st.sealed
	if s.Report.Runs || st.lost() || s.Payload == nil || s.Payload.Tombstone {
		return s.Report.Runs || st.lost(), nil
	}
	return st.nodes.AwaitsReport(s.Payload)
}
