package application

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/crd"
	"github.com/skep-dev/skep/controller/nodereports"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
)

// sealedIntent is a BpfIntent whose seal holds; the zero value stands for none.
type sealedIntent struct {
	object  *v1alpha1.BpfIntent
	payload *intent.Payload
	// report is what nodes report on the application.
	report nodereports.Report
	// gone is why it is to be unloaded, if its application is gone.
	gone string
}

// isBehindNodes reports whether nodes have seen a newer intent, which was lost.
func (s sealedIntent) isBehindNodes() bool {
	return s.payload != nil && s.report.Serial > s.payload.Serial
}

// openIntent opens a BpfIntent; false where its seal does not hold or it speaks of
// another object than its name says.
func (r *Reconciler) openIntent(o *v1alpha1.BpfIntent) (sealedIntent, bool) {
	opened, err := r.Keys().Trust.Open(o.Spec.Envelope)
	if err != nil || opened.Payload().UID != o.Name {
		return sealedIntent{}, false
	}
	payload := opened.Payload()
	return sealedIntent{object: o, payload: &payload}, true
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

// intents lists the intents of an identity whose seals hold: one, and those of former
// applications of the same name.
func (r *Reconciler) intents(ctx context.Context, id v1alpha1.Identity) ([]sealedIntent, error) {
	var list v1alpha1.BpfIntentList
	if err := r.Client.List(ctx, &list, client.MatchingFields{byApplication: indexKey(id)}); err != nil {
		return nil, fmt.Errorf("list intents of %s: %w", id, err)
	}
	var found []sealedIntent
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

// write seals what an action asks for and writes it, in one request.
func (r *Reconciler) write(ctx context.Context, st *state, action lifecycle.Action, why string) (err error) {
	switch action {
	case lifecycle.Keep:
		return nil
	case lifecycle.Unload:
		if rolledBack, err := r.rollBack(ctx, st); rolledBack || err != nil {
			return err
		}
		st.sealed, err = r.unload(ctx, st.sealed, why)
		return err
	}
	crd, err := r.crdToSeal(ctx, st.app.Identity().Kind)
	if err != nil {
		return err
	}
	stamp, err := r.stamp(ctx, st)
	if err != nil {
		return err
	}
	st.sealed, err = r.seal(ctx, st.sealed, st.observed.Verdict, stamp, crd)
	return err
}

// seal seals a verdict over an intent.
func (r *Reconciler) seal(ctx context.Context, mine sealedIntent, v gate.Verdict, stamp gate.Stamp, crd string) (sealedIntent, error) {
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
func (r *Reconciler) unload(ctx context.Context, s sealedIntent, why string) (sealedIntent, error) {
	envelope, err := gate.SealTombstone(r.Keys().Sealer, s.payload.Application, gate.Stamp{UID: s.payload.UID, Serial: r.serial(s), Undone: s.payload.Undone}, why)
	if err != nil {
		return s, err
	}
	ctrl.LoggerFrom(ctx).Info("unloading application", "application", s.payload.Application.String(), "reason", why)
	return r.putEnvelope(ctx, s, envelope, s.object.Annotations[annotationCRD])
}

func (r *Reconciler) serial(s sealedIntent) int64 {
	last := s.report.Serial
	if s.payload != nil {
		last = max(last, s.payload.Serial)
	}
	return gate.NextSerial(last, r.now().UnixMilli())
}

// objectFor is the object that an intent is written to: the one before it, else the
// one that bears its name under a seal that does not hold, such as that of a key
// that was lost, else a new one.
func (r *Reconciler) objectFor(ctx context.Context, before sealedIntent, uid string) (*v1alpha1.BpfIntent, error) {
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
func (r *Reconciler) putEnvelope(ctx context.Context, before sealedIntent, envelope intent.Envelope, crd string) (sealedIntent, error) {
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

// withdrawRollout takes the newest version from the nodes that its rollout reached: all
// should run the previous one.
func (r *Reconciler) withdrawRollout(ctx context.Context, s sealedIntent) (sealedIntent, error) {
	envelope, err := gate.WithdrawRollout(r.Keys().Sealer, *s.payload, r.serial(s))
	if err != nil {
		return s, err
	}
	ctrl.LoggerFrom(ctx).Info("the newest version may run no more, and is taken from the nodes it came to", "application", s.payload.Application.String())
	return r.putEnvelope(ctx, s, envelope, s.object.Annotations[annotationCRD])
}
