// Package intents reads and writes the BpfIntents of a cluster, one per application: sealed
// envelopes that agents act on.
//
// It owns their serials, and which CRD an application was an object of. It decides nothing:
// what is sealed, its callers say, and package gate seals it.
package intents

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/controller/crd"
	"github.com/skep-dev/skep/controller/nodereports"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
)

// Intent is a BpfIntent whose seal holds; the zero value stands for none.
type Intent struct {
	Object  *v1alpha1.BpfIntent
	Payload *intent.Payload
	// Report is what nodes report on its application.
	Report nodereports.Report
}

// IsBehindNodes reports whether nodes have seen a newer intent, which was lost.
func (i Intent) IsBehindNodes() bool {
	return i.Payload != nil && i.Report.Serial > i.Payload.Serial
}

// CRD is the UID of the CRD that its application was an object of when it was sealed.
func (i Intent) CRD() string { return i.Object.Annotations[annotationCRD] }

// Store reads intents from the cache, and writes them. It is safe for concurrent use.
type Store struct {
	// Client reads from the cache and writes; Live reads past the cache.
	Client client.Client
	Live   client.Reader
	// Keys seal, and open what this controller, or one before it, sealed.
	Keys func() sealing.Keys
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Wrote is called for each intent that was written; nil means nobody.
	Wrote func(tombstone bool)

	crds singleflight.Group
}

// ErrUnsealable says that a verdict cannot be sealed: trying again does not help.
var ErrUnsealable = errors.New("it is allowed and cannot be sealed")

// ErrBehind says that the cache does not show what the API server has, or did not a
// moment ago.
var ErrBehind = errors.New("the cache has yet to show what there is; looking again")

// Open opens a BpfIntent; false where its seal does not hold or it speaks of
// another object than its name says.
func (s *Store) Open(o *v1alpha1.BpfIntent) (Intent, bool) {
	opened, err := s.Keys().Trust.Open(o.Spec.Envelope)
	if err != nil || opened.Payload().UID != o.Name {
		return Intent{}, false
	}
	payload := opened.WithEvidence()
	return Intent{Object: o, Payload: &payload}, true
}

// ByApplication is the index of BpfIntents by what their seal says they are of.
const ByApplication = "application"

// Index is the key of a BpfIntent in the index: what its seal says, else what
// it says to people, since a key that is not trusted yet may be trusted later.
func (s *Store) Index(o client.Object) []string {
	of := o.(*v1alpha1.BpfIntent).Spec.Application
	if i, ok := s.Open(o.(*v1alpha1.BpfIntent)); ok {
		of = i.Payload.Application
	}
	return []string{indexKey(of)}
}

func indexKey(id v1alpha1.Identity) string { return id.Kind + "/" + id.String() }

// Of lists the intents of an identity whose seals hold: one, and those of former
// applications of the same name.
func (s *Store) Of(ctx context.Context, id v1alpha1.Identity) ([]Intent, error) {
	var list v1alpha1.BpfIntentList
	if err := s.Client.List(ctx, &list, client.MatchingFields{ByApplication: indexKey(id)}); err != nil {
		return nil, fmt.Errorf("list intents of %s: %w", id, err)
	}
	var found []Intent
	for n := range list.Items {
		if i, ok := s.Open(&list.Items[n]); ok && i.Payload.Application == id {
			found = append(found, i)
		}
	}
	return found, nil
}

// annotationCRD records on a BpfIntent the UID of the CRD that its application
// was an object of.
const annotationCRD = v1alpha1.Group + "/crd"

// CRD is the UID of a kind's CRD; empty where it is not served, or about to be
// no more.
func (s *Store) CRD(ctx context.Context, kind string) (string, error) {
	uid, err := crd.UID(ctx, s.Live, map[string]string{
		v1alpha1.KindBpfApplication:        "bpfapplications",
		v1alpha1.KindClusterBpfApplication: "clusterbpfapplications",
	}[kind])
	return string(uid), err
}

// CRDToSeal is CRD for an application that is there: applications that are sealed at
// the same time share one request. An answer that is older than the application by
// the time of that request is safe: absence is believed less by it, and not more.
func (s *Store) CRDToSeal(ctx context.Context, kind string) (string, error) {
	uid, err, _ := s.crds.Do(kind, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), crdTimeout)
		defer cancel()
		return s.CRD(ctx, kind)
	})
	if err != nil {
		return "", err
	}
	return uid.(string), nil
}

// Seal seals a verdict over an intent.
func (s *Store) Seal(ctx context.Context, i Intent, v gate.Verdict, stamp gate.Stamp, crd string) (Intent, error) {
	stamp.Serial = s.serial(i)
	if app := v.Application(); app != nil && !app.GetCreationTimestamp().Time.IsZero() {
		stamp.Created = app.GetCreationTimestamp().UnixMilli()
	}
	envelope, err := v.Seal(s.Keys().Sealer, stamp)
	if err != nil {
		return i, fmt.Errorf("%w: %w", ErrUnsealable, err)
	}
	return s.write(ctx, i, envelope, crd)
}

// Unload seals a tombstone over an intent.
func (s *Store) Unload(ctx context.Context, i Intent, why string) (Intent, error) {
	envelope, err := gate.SealTombstone(s.Keys().Sealer, i.Payload.Application, gate.Stamp{UID: i.Payload.UID, Serial: s.serial(i), Undone: i.Payload.Undone}, why)
	if err != nil {
		return i, err
	}
	return s.write(ctx, i, envelope, i.CRD())
}

func (s *Store) serial(i Intent) int64 {
	last := i.Report.Serial
	if i.Payload != nil {
		last = max(last, i.Payload.Serial)
	}
	return gate.NextSerial(last, clock.OrSystem(s.Now)().UnixMilli())
}

// objectFor is the object that an intent is written to: the one before it, else the
// one that bears its name under a seal that does not hold, such as that of a key
// that was lost, else a new one.
func (s *Store) objectFor(ctx context.Context, before Intent, uid string) (*v1alpha1.BpfIntent, error) {
	if before.Object != nil {
		return before.Object.DeepCopy(), nil
	}
	o := &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: uid}}
	err := s.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
	if apierrors.IsNotFound(err) {
		return &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: uid}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get intent %s: %w", uid, err)
	}
	if _, holds := s.Open(o); holds {
		return nil, fmt.Errorf("write intent %s: %w", uid, ErrBehind)
	}
	return o, nil
}

// write writes an envelope, over the intent it follows. Somebody else's write in
// between is a conflict, and all is looked at again.
func (s *Store) write(ctx context.Context, before Intent, envelope intent.Envelope, crd string) (Intent, error) {
	opened, err := s.Keys().Trust.Open(envelope)
	if err != nil {
		return before, fmt.Errorf("read back what was sealed: %w", err)
	}
	p := opened.WithEvidence()
	o, err := s.objectFor(ctx, before, p.UID)
	if err != nil {
		return before, err
	}
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	o.Annotations[annotationCRD] = crd
	o.Spec = v1alpha1.BpfIntentSpec{Envelope: envelope, Application: p.Application, Serial: p.Serial, Tombstone: p.Tombstone, Digest: p.ImageDigest}
	if o.ResourceVersion == "" {
		err = s.Client.Create(ctx, o)
	} else {
		err = s.Client.Update(ctx, o)
	}
	if err != nil {
		return before, fmt.Errorf("write intent of %s: %w", p.Application, err)
	}
	if s.Wrote != nil {
		s.Wrote(p.Tombstone)
	}
	action, reason := "seal", "allowed"
	if p.Tombstone {
		action, reason = "unload", p.Reason
	}
	ctrl.LoggerFrom(ctx).Info("sealed intent", "application", p.Application.String(), "action", action, "serial", p.Serial, "version", p.VersionSerial(),
		"digest", p.ImageDigest, "reason", reason)
	intent.LogGrants(before.Payload, &p, ctrl.LoggerFrom(ctx).WithValues("serial", p.Serial).Info)
	before.Object, before.Payload = o, &p
	return before, nil
}

// WithdrawRollout takes the newest version from the nodes that its rollout reached: all
// should run the previous one.
func (s *Store) WithdrawRollout(ctx context.Context, i Intent) (Intent, error) {
	envelope, err := gate.WithdrawRollout(s.Keys().Sealer, *i.Payload, s.serial(i))
	if err != nil {
		return i, err
	}
	ctrl.LoggerFrom(ctx).Info("the newest version may run no more, and is taken from the nodes it came to", "application", i.Payload.Application.String())
	return s.write(ctx, i, envelope, i.CRD())
}

// WithdrawVersions seals an intent, which live is but for its rollout, without some of the
// versions beside its own, named by their VersionSerial.
func (s *Store) WithdrawVersions(ctx context.Context, i Intent, live intent.Payload, gone []int64) (Intent, error) {
	envelope, err := gate.WithdrawVersions(s.Keys().Sealer, live, s.serial(i), gone)
	if err != nil {
		return i, err
	}
	ctrl.LoggerFrom(ctx).Info("a version beside the newest may run no more, and is unloaded where it runs", "application", i.Payload.Application.String())
	return s.write(ctx, i, envelope, i.CRD())
}

// WithdrawGrants takes from readers, of an intent which live is but for its rollout, what the definition of the maps does not grant any more, and
// what is not given in beside of the versions beside its own; see gate.WithdrawGrants.
func (s *Store) WithdrawGrants(ctx context.Context, i Intent, live intent.Payload, definition map[string]v1alpha1.Map,
	beside map[int64]map[string]v1alpha1.Map) (Intent, error) {
	envelope, err := gate.WithdrawGrants(s.Keys().Sealer, live, s.serial(i), definition, beside)
	if err != nil || envelope == nil {
		return i, err
	}
	ctrl.LoggerFrom(ctx).Info("grants of maps are withdrawn", "application", i.Payload.Application.String())
	return s.write(ctx, i, envelope, i.CRD())
}

// UnloadLost seals a tombstone for an application that nodes report, and whose intent was
// lost.
func (s *Store) UnloadLost(ctx context.Context, id v1alpha1.Identity, uid string, report nodereports.Report, crd, why string) error {
	lost := Intent{Payload: &intent.Payload{Application: id, UID: uid}, Report: report}
	envelope, err := gate.SealTombstone(s.Keys().Sealer, id, gate.Stamp{UID: uid, Serial: s.serial(lost)}, why)
	if err != nil {
		return err
	}
	_, err = s.write(ctx, lost, envelope, crd)
	return err
}

// crdTimeout bounds the request of CRDToSeal.
const crdTimeout = 20 * time.Second
