package application

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/nodereports"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
)

// tookItsPlace is why an application is unloaded whose name another one bears.
const tookItsPlace = "another application of the same name took its place"

// A tombstone is kept for keepTombstone whatever the nodes say: one whose Node
// object is gone says nothing, and may be back. Then it is looked at each
// untilUnloaded whether a node still runs what it is of.
const (
	keepTombstone = 24 * time.Hour
	untilUnloaded = 10 * time.Minute
)

// retireIntent has an intent whose application is gone unloaded, and drops the
// tombstone once it is old enough and no node runs what it is of.
func (r *Reconciler) retireIntent(ctx context.Context, st *state, s former) (time.Duration, error) {
	switch {
	case !s.Payload.Tombstone && s.unload == "":
		return 0, keepOrphan(ctx, r, st, s.Intent)
	case !s.Payload.Tombstone:
		_, err := r.Intents.Unload(ctx, s.Intent, s.unload)
		return 0, err
	}
	overtaken, wait := nodesAreAhead(s.Intent, r.now())
	if overtaken {
		_, err := r.Intents.Unload(ctx, s.Intent, lifecycle.UnloadedAgain(s.Payload.Reason))
		return minBetween, err
	}
	if left := time.UnixMilli(s.Payload.Serial).Add(keepTombstone).Sub(r.now()); left > 0 {
		return earlier(wait, left), nil
	}
	if err := r.gatherNodes(ctx, st); err != nil {
		return 0, err
	}
	if st.nodes.MayRun(s.Payload.UID, s.Payload.Serial) {
		return untilUnloaded, nil
	}
	err := r.Client.Delete(ctx, s.Object, client.Preconditions{UID: &s.Object.UID, ResourceVersion: &s.Object.ResourceVersion})
	return 0, client.IgnoreNotFound(err)
}

// keepOrphan keeps what vanished with its CRD: none of it but what is revoked, and readers whom policies deny, is taken from it.
func keepOrphan(ctx context.Context, r *Reconciler, st *state, s intents.Intent) error {
	namespace, err := namespaceOf(ctx, r.Client, s.Payload.Application)
	if err != nil {
		return err
	}
	s, err = withdrawDenied(ctx, r, st, s, gate.Request{Namespace: namespace}, s.Payload, true)
	if err != nil {
		return err
	}
	return r.unloadRevokedVersions(ctx, st.nodes, s, namespace)
}

// unloadRevokedVersions has the versions unloaded of what vanished with its CRD that were
// admitted by nobody who is not revoked, and those of which one signer is revoked
// and that are denied now: nothing else is evaluated of it.
func (r *Reconciler) unloadRevokedVersions(ctx context.Context, nodes nodereports.Snapshot, s intents.Intent, namespace policies.Namespace) error {
	revoked := r.Keeper.Revoked()
	kept, err := r.dropDeniedVersions(ctx, nodes, s, r.verdicts().rulesChanged, func(v *intent.Payload) bool {
		if lifecycle.LostAllSigners(v, revoked) {
			return false
		}
		return !lifecycle.LostASigner(v, revoked) || r.verdicts().version(ctx, gate.Request{Namespace: namespace}, *v).Keeps
	})
	if err != nil || kept {
		return err
	}
	_, err = r.Intents.Unload(ctx, s, lifecycle.RevocationReason(s.Payload, revoked))
	return err
}

// waitsForSuccessor reports whether what an application left behind runs on until the one that
// took its place is evaluated: its author must not gain a gap by creating it anew,
// nor keep by that what a revocation or a policy would have unloaded.
func (r *Reconciler) waitsForSuccessor(ctx context.Context, st *state, s *intents.Intent) (bool, error) {
	if s.Payload.Tombstone {
		return false, nil
	}
	request, err := r.request(ctx, st.app, nil)
	if err != nil {
		// The successor is evaluated later, and so is this.
		return true, nil
	}
	// It has no other readers than its successor grants.
	if *s, err = withdrawUndefined(ctx, r, st, *s, request); err != nil {
		return true, err
	}
	if *s, err = withdrawDenied(ctx, r, st, *s, request, s.Payload, true); err != nil {
		return true, err
	}
	evaluating, cancel := context.WithTimeout(ctx, r.verdicts().timeout)
	defer cancel()
	keeps := func(v *intent.Payload) bool { return r.verdicts().mayKeep(evaluating, request, *v) }
	return r.dropDeniedVersions(ctx, st.nodes, *s, r.verdicts().rulesChanged, keeps)
}

// dropDeniedVersions takes the versions from an intent that may run no more, where nothing is
// sealed over it for now: false where all that runs by it is to be unloaded. overruled
// reports whether that was decided by what is out of date in a namespace.
func (r *Reconciler) dropDeniedVersions(ctx context.Context, nodes nodereports.Snapshot, s intents.Intent,
	overruled func(namespace string) bool, keeps func(*intent.Payload) bool) (kept bool, err error) {
	live, own := s.Payload, !keeps(s.Payload)
	var gone []int64
	for _, v := range live.Beside() {
		if !keeps(v) {
			gone = append(gone, v.VersionSerial())
		}
	}
	if overruled(s.Payload.Application.Namespace) {
		return true, errOverruled
	}
	switch {
	case own && (live.Rollout == nil || live.Previous == nil || slices.Contains(gone, live.Previous.VersionSerial())):
		return false, nil
	case own && live.Rollout.Through != "":
		_, err = r.Intents.WithdrawRollout(ctx, s)
	default:
		_, err = otherVersions{intent: live.Serial, gone: gone, own: own}.withdraw(ctx, r.Intents, nodes, s)
	}
	return true, err
}

// errOrphan says that an intent outlived its application's CRD.
var errOrphan = errors.New("the CRD of the application was deleted since, so that its absence says nothing; what runs is kept. " +
	"Create the application again, or delete it by hand")

// unloadReason tells why an intent that is no tombstone is to be unloaded whose
// application the cache does not show: it was deleted on its own account, which
// the API server itself is asked. An application that vanished with its CRD was not
// deleted, and the reason is empty: what runs is kept, but for what a revocation
// takes, and the same application created anew takes its place.
func (r *Reconciler) unloadReason(ctx context.Context, s intents.Intent) (why string, err error) {
	if s.Payload.Tombstone {
		return "", nil
	}
	id := s.Payload.Application
	app, err := applicationOf(ctx, r.Live, id)
	switch {
	case err != nil:
		return "", err
	case app != nil && string(app.GetUID()) == s.Payload.UID:
		return "", fmt.Errorf("unload %s: %w", id, intents.ErrBehind)
	case app != nil:
		return tookItsPlace, nil
	}
	// After the application: had its CRD been on its way out then, it would be so
	// now.
	crd, err := r.Intents.CRD(ctx, id.Kind)
	if err == nil && (crd == "" || crd != s.CRD()) {
		ctrl.LoggerFrom(ctx).Info(errOrphan.Error(), "application", id.String(), "intent", s.Object.Name)
		return "", nil
	}
	return "it was deleted", err
}
