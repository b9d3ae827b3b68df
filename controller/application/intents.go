package application

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/crd"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
)

// sealed is a BpfIntent whose seal holds; the zero value stands for none.
type sealed struct {
	object  *v1alpha1.BpfIntent
	payload *intent.Payload
	// report is what nodes say of it.
	report nodeReport
	// runs tells that nodes run something under the application's name, lost that
	// they do so by an intent that is no more, or whose seal does not hold.
	runs, lost bool
	// gone is why it is to be unloaded, where its application is no more.
	gone string
}

// isBehindNodes tells that nodes have seen a newer intent than there is: it was lost.
func (s sealed) isBehindNodes() bool {
	return s.payload != nil && s.report.serial > s.payload.Serial
}

// openIntent opens a BpfIntent; false where its seal does not hold or it speaks of
// another object than its name says.
func (r *Reconciler) openIntent(o *v1alpha1.BpfIntent) (sealed, bool) {
	opened, err := r.Keys().Trust.Open(o.Spec.Envelope)
	if err != nil || opened.Payload().UID != o.Name {
		return sealed{}, false
	}
	payload := opened.Payload()
	return sealed{object: o, payload: &payload}, true
}

// byApplication is the index of BpfIntents by what their seal says they are of.
const byApplication = "application"

// indexIntent is the key of a BpfIntent in the index: what its seal says, else what
// it says to people, since a key that is not trusted yet may be trusted later.
func (r *Reconciler) indexIntent(o client.Object) []string {
	of := o.(*v1alpha1.BpfIntent).Spec.Application
	if s, ok := r.openIntent(o.(*v1alpha1.BpfIntent)); ok {
		of = s.payload.Application
	}
	return []string{indexKey(of)}
}

func indexKey(id v1alpha1.Identity) string { return id.Kind + "/" + id.String() }

// sealed lists the intents of an identity whose seals hold: one, and those of
// applications of the same name before it.
func (r *Reconciler) sealed(ctx context.Context, id v1alpha1.Identity) ([]sealed, error) {
	var list v1alpha1.BpfIntentList
	if err := r.Client.List(ctx, &list, client.MatchingFields{byApplication: indexKey(id)}); err != nil {
		return nil, fmt.Errorf("list intents of %s: %w", id, err)
	}
	var found []sealed
	for i := range list.Items {
		if s, ok := r.openIntent(&list.Items[i]); ok && s.payload.Application == id {
			found = append(found, s)
		}
	}
	return found, nil
}

// annotationCRD records on a BpfIntent the UID of the CRD that its application
// was an object of.
const annotationCRD = v1alpha1.Group + "/crd"

// crd is the UID of a kind's CRD; empty where it is not served, or about to be
// no more.
func (r *Reconciler) crd(ctx context.Context, kind string) (string, error) {
	uid, err := crd.UID(ctx, r.Live, map[string]string{
		v1alpha1.KindBpfApplication:        "bpfapplications",
		v1alpha1.KindClusterBpfApplication: "clusterbpfapplications",
	}[kind])
	return string(uid), err
}

// crdToSeal is crd for an application that is there: applications that are sealed at
// the same time share one request. An answer that is older than the application by
// the time of that request is safe: absence is believed less by it, and not more.
func (r *Reconciler) crdToSeal(ctx context.Context, kind string) (string, error) {
	uid, err, _ := r.crds.Do(kind, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), evaluationTimeout)
		defer cancel()
		return r.crd(ctx, kind)
	})
	if err != nil {
		return "", err
	}
	return uid.(string), nil
}

// write seals what a move asks for and writes it, in one request.
func (r *Reconciler) write(ctx context.Context, app application, mine sealed, s lifecycle.Observation, move lifecycle.Action, why string) (sealed, error) {
	if move == lifecycle.Keep {
		return mine, nil
	}
	if move == lifecycle.Unload {
		if before, went, err := r.rollBack(ctx, app, mine, s); went || err != nil {
			return before, err
		}
		return r.unload(ctx, mine, why)
	}
	crd, err := r.crdToSeal(ctx, app.Identity().Kind)
	if err != nil {
		return mine, err
	}
	stamp, err := r.stamp(ctx, app, mine, s)
	if err != nil {
		return mine, err
	}
	return r.seal(ctx, mine, s.Verdict, stamp, crd)
}

// seal seals a verdict over an intent.
func (r *Reconciler) seal(ctx context.Context, mine sealed, v gate.Verdict, stamp gate.Stamp, crd string) (sealed, error) {
	stamp.Serial = r.serial(mine)
	if app := v.Application(); app != nil && !app.GetCreationTimestamp().Time.IsZero() {
		stamp.Created = app.GetCreationTimestamp().UnixMilli()
	}
	envelope, err := v.Seal(r.Keys().Sealer, stamp)
	if err != nil {
		return mine, fmt.Errorf("%w: %w", errUnsealable, err)
	}
	return r.putEnvelope(ctx, mine, envelope, crd)
}

// unload seals a tombstone over an intent.
func (r *Reconciler) unload(ctx context.Context, s sealed, why string) (sealed, error) {
	envelope, err := gate.SealTombstone(r.Keys().Sealer, s.payload.Application, gate.Stamp{UID: s.payload.UID, Serial: r.serial(s), Undone: s.payload.Undone}, why)
	if err != nil {
		return s, err
	}
	ctrl.LoggerFrom(ctx).Info("unloading application", "application", s.payload.Application.String(), "reason", why)
	return r.putEnvelope(ctx, s, envelope, s.object.Annotations[annotationCRD])
}

func (r *Reconciler) serial(s sealed) int64 {
	last := s.report.serial
	if s.payload != nil {
		last = max(last, s.payload.Serial)
	}
	return gate.NextSerial(last, r.now().UnixMilli())
}

// objectFor is the object that an intent is written to: the one before it, else the
// one that bears its name under a seal that does not hold, such as that of a key
// that was lost, else a new one.
func (r *Reconciler) objectFor(ctx context.Context, before sealed, uid string) (*v1alpha1.BpfIntent, error) {
	if before.object != nil {
		return before.object.DeepCopy(), nil
	}
	o := &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: uid}}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
	if apierrors.IsNotFound(err) {
		return &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: uid}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get intent %s: %w", uid, err)
	}
	if _, holds := r.openIntent(o); holds {
		return nil, fmt.Errorf("write intent %s: %w", uid, errBehind)
	}
	return o, nil
}

// putEnvelope writes an envelope, over the intent it follows. Somebody else's write in
// between is a conflict, and all is looked at again.
func (r *Reconciler) putEnvelope(ctx context.Context, before sealed, envelope intent.Envelope, crd string) (sealed, error) {
	opened, err := r.Keys().Trust.Open(envelope)
	if err != nil {
		return before, fmt.Errorf("read back what was sealed: %w", err)
	}
	p := opened.Payload()
	o, err := r.objectFor(ctx, before, p.UID)
	if err != nil {
		return before, err
	}
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	o.Annotations[annotationCRD] = crd
	o.Spec = v1alpha1.BpfIntentSpec{Envelope: envelope, Application: p.Application, Serial: p.Serial, Tombstone: p.Tombstone, Digest: p.ImageDigest}
	if o.ResourceVersion == "" {
		err = r.Client.Create(ctx, o)
	} else {
		err = r.Client.Update(ctx, o)
	}
	if err != nil {
		return before, fmt.Errorf("write intent of %s: %w", p.Application, err)
	}
	r.Metrics.sealed(p.Tombstone)
	before.object, before.payload = o, &p
	return before, nil
}

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
func (r *Reconciler) retireIntent(ctx context.Context, s sealed) (time.Duration, error) {
	switch {
	case !s.payload.Tombstone && s.gone == "":
		return 0, r.unloadRevokedVersions(ctx, s)
	case !s.payload.Tombstone:
		_, err := r.unload(ctx, s, s.gone)
		return 0, err
	}
	overtaken, wait := r.nodesAreAhead(s)
	if overtaken {
		_, err := r.unload(ctx, s, lifecycle.UnloadedAgain(s.payload.Reason))
		return minBetween, err
	}
	if left := time.UnixMilli(s.payload.Serial).Add(keepTombstone).Sub(r.now()); left > 0 {
		return earlier(wait, left), nil
	}
	if runs, err := r.runs(ctx, s); err != nil || runs {
		return untilUnloaded, err
	}
	err := r.Client.Delete(ctx, s.object, client.Preconditions{UID: &s.object.UID, ResourceVersion: &s.object.ResourceVersion})
	return 0, client.IgnoreNotFound(err)
}

// unloadRevokedVersions has the versions unloaded of what vanished with its CRD that were
// admitted by nobody who is not revoked, and those of which one signer is revoked
// and that are denied now: nothing else is evaluated of it.
func (r *Reconciler) unloadRevokedVersions(ctx context.Context, s sealed) error {
	revoked := r.Keeper.Revoked()
	namespace, err := r.namespace(ctx, s.payload.Application)
	if err != nil {
		return err
	}
	kept, err := r.dropDeniedVersions(ctx, s, func(v *intent.Payload) bool {
		if lifecycle.LostAllSigners(v, revoked) {
			return false
		}
		return !lifecycle.LostASigner(v, revoked) || r.versionVerdict(ctx, gate.Request{Namespace: namespace}, *v).Keeps
	})
	if err != nil || kept {
		return err
	}
	_, err = r.unload(ctx, s, lifecycle.RevocationReason(s.payload, revoked))
	return err
}

// waitsForSuccessor reports whether what an application left behind runs on until the one that
// took its place is evaluated: its author must not gain a gap by creating it anew,
// nor keep by that what a revocation or a policy would have unloaded.
func (r *Reconciler) waitsForSuccessor(ctx context.Context, now application, s sealed) (bool, error) {
	if s.payload.Tombstone {
		return false, nil
	}
	request, err := r.request(ctx, now, nil)
	if err != nil {
		// The successor is evaluated later, and so is this.
		return true, nil
	}
	judging, cancel := context.WithTimeout(ctx, cmp.Or(r.EvaluationTimeout, evaluationTimeout))
	defer cancel()
	return r.dropDeniedVersions(ctx, s, func(v *intent.Payload) bool { return r.mayKeep(judging, now, request, *v) })
}

// dropDeniedVersions takes the versions from an intent that may run no more, where nothing is
// sealed over it for now: false where all that runs by it is to be unloaded.
func (r *Reconciler) dropDeniedVersions(ctx context.Context, s sealed, keeps func(*intent.Payload) bool) (kept bool, err error) {
	live, own := s.payload, !keeps(s.payload)
	var gone []int64
	for _, v := range live.Beside() {
		if !keeps(v) {
			gone = append(gone, v.VersionSerial())
		}
	}
	if r.rulesChanged(s.payload.Application.Namespace) {
		return true, errOverruled
	}
	switch {
	case own && (live.Rollout == nil || live.Previous == nil || slices.Contains(gone, live.Previous.VersionSerial())):
		return false, nil
	case own && live.Rollout.Through != "":
		_, err = r.withdraw(ctx, s)
	default:
		_, err = r.withdrawVersions(ctx, s, otherVersions{intent: live.Serial, gone: gone, own: own})
	}
	return true, err
}

// withdraw takes the newest version from the nodes that its rollout came to: all
// are held at the one before.
func (r *Reconciler) withdraw(ctx context.Context, s sealed) (sealed, error) {
	envelope, err := gate.WithdrawRollout(r.Keys().Sealer, *s.payload, r.serial(s))
	if err != nil {
		return s, err
	}
	ctrl.LoggerFrom(ctx).Info("the newest version may run no more, and is taken from the nodes it came to", "application", s.payload.Application.String())
	return r.putEnvelope(ctx, s, envelope, s.object.Annotations[annotationCRD])
}

// errOrphan says that an intent outlived its application's CRD.
var errOrphan = errors.New("the CRD of the application was deleted since, so that its absence says nothing; what runs is kept. Create the application again, or delete it by hand")

// errBehind says that the cache does not show what the API server has, or did not a
// moment ago.
var errBehind = errors.New("the cache has yet to show what there is; looking again")

// unloadReason tells why an intent that is no tombstone is to be unloaded whose
// application the cache does not show: it was deleted on its own account, which
// the API server itself is asked. An application that vanished with its CRD was not
// deleted, and the reason is empty: what runs is kept, but for what a revocation
// takes, and the same application created anew takes its place.
func (r *Reconciler) unloadReason(ctx context.Context, s sealed) (why string, err error) {
	if s.payload.Tombstone {
		return "", nil
	}
	id := s.payload.Application
	app, err := r.application(ctx, r.Live, id)
	switch {
	case err != nil:
		return "", err
	case app != nil && string(app.GetUID()) == s.payload.UID:
		return "", fmt.Errorf("unload %s: %w", id, errBehind)
	case app != nil:
		return tookItsPlace, nil
	}
	// After the application: had its CRD been on its way out then, it would be so
	// now.
	crd, err := r.crd(ctx, id.Kind)
	if err == nil && (crd == "" || crd != s.object.Annotations[annotationCRD]) {
		ctrl.LoggerFrom(ctx).Info(errOrphan.Error(), "application", id.String(), "intent", s.object.Name)
		return "", nil
	}
	return "it was deleted", err
}

// runs reports whether a node says that it runs what a tombstone is of, or has no
// room in its report to say so. A node that is away with it keeps the tombstone
// waiting, however long: it is to clean up when it returns.
func (r *Reconciler) runs(ctx context.Context, s sealed) (bool, error) {
	var nodes v1alpha1.BpfNodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list what nodes report: %w", err)
	}
	return mayRunUnreported(nodes.Items, s.payload.UID) || slices.ContainsFunc(nodes.Items, func(n v1alpha1.BpfNode) bool {
		a := n.Status.Of(s.payload.UID)
		return a != nil && (a.State != v1alpha1.NodeRemoved || a.Serial < s.payload.Serial)
	}), nil
}
