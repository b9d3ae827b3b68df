package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/leader"
)

// Reconciler refreshes the Keeper whenever a signer or a policy changes, and
// says on each whether it is in force.
type Reconciler struct {
	Client client.Client
	Keeper *Keeper
	// Weigher weighs a change before it acts on what runs.
	Weigher Weigher
	// Changed is called when other signers or policies are in force than before,
	// or a human confirmed them: everything is to be judged again.
	Changed func()
	// Events tells people of what cannot be used. Needed.
	Events events.EventRecorder
	// Interval is how often all is read again without an event, and sealed anew where
	// the key changed; zero means five minutes, half of what a former key is trusted
	// for at least.
	Interval time.Duration
	// Leader decides whether this replica writes; nil means that it does.
	Leader *leader.Elector
}

// all is the one request there is: signers and policies come into force
// together.
var all = reconcile.Request{NamespacedName: types.NamespacedName{Name: "signers-and-policies"}}

// Register has a manager run the Reconciler. Every replica runs it, since every
// replica answers admission requests; only the leader writes.
func (r *Reconciler) Register(mgr ctrl.Manager) error {
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{all} })
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
	everywhere := false
	return ctrl.NewControllerManagedBy(mgr).Named("policy").
		WithOptions(controller.Options{NeedLeaderElection: &everywhere}).
		Watches(&v1alpha1.BpfSigner{}, one, changed).
		Watches(&v1alpha1.ClusterBpfPolicy{}, one, changed).
		Watches(&v1alpha1.BpfPolicy{}, one, changed).
		WatchesRawSource(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			q.Add(all)
			r.Leader.Elected(func() { q.Add(all) })
			return nil
		})).
		Complete(r)
}

// Reconcile brings what is written into force.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (ctrl.Result, error) {
	outcomes, changed, err := r.Keeper.Refresh(ctx, r.Weigher)
	if err != nil {
		return ctrl.Result{}, err
	}
	if changed {
		ctrl.LoggerFrom(ctx).Info("signers and policies are in force", "revision", r.Keeper.Weighed(), "objects", len(outcomes))
		r.Changed()
	}
	again := r.again(outcomes)
	_, err = r.Leader.Do(ctx, func(ctx context.Context) error {
		again, err = r.write(ctx, outcomes)
		return err
	})
	return ctrl.Result{RequeueAfter: again}, err
}

// write keeps what is in force and reports it on each object, and returns when to do
// so again.
func (r *Reconciler) write(ctx context.Context, outcomes []Outcome) (again time.Duration, err error) {
	again, errs := r.again(outcomes), []error{r.Keeper.Remember(ctx)}
	for _, o := range outcomes {
		if o.Pending {
			continue
		}
		err := r.report(ctx, o)
		if apierrors.IsConflict(err) {
			// The cache is behind, which is nobody's fault.
			again = settle
			continue
		}
		errs = append(errs, err)
	}
	return again, errors.Join(errs...)
}

// settle is when an object is looked at again that the cache does not show as it
// is.
const settle = 500 * time.Millisecond

// pending is when what is still being compiled is asked for again.
const pending = time.Second

// again is when all is read again without an event.
func (r *Reconciler) again(outcomes []Outcome) time.Duration {
	if slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.Pending }) {
		return pending
	}
	return r.interval()
}

func (r *Reconciler) interval() time.Duration { return cmp.Or(r.Interval, 5*time.Minute) }

// The reasons of Ready on a signer or policy.
const (
	ReasonInForce = "InForce"
	ReasonInvalid = "Invalid"
)

// report says on one object whether it is in force, where that is not what it
// says already. Of one that vanished, the log says so.
func (r *Reconciler) report(ctx context.Context, o Outcome) error {
	if o.Vanished {
		ctrl.LoggerFrom(ctx).Info("the CRD of a signer or policy was deleted since, so that its absence says nothing; it stays in force. Create it again, and delete it then if it is to go",
			"type", fmt.Sprintf("%T", o.Object), "namespace", o.Object.GetNamespace(), "name", o.Object.GetName())
		return nil
	}
	before, ok := o.Object.(conditions.Setter)
	if !ok {
		return fmt.Errorf("report on %T: it has no conditions", o.Object)
	}
	obj := before.DeepCopyObject().(conditions.Setter)
	if o.Err != nil {
		conditions.MarkFalse(obj, v1alpha1.ConditionReady, ReasonInvalid, "%s", o.Err)
		conditions.MarkStalled(obj, ReasonInvalid, "%s", o.Err)
	} else {
		conditions.MarkTrue(obj, v1alpha1.ConditionReady, ReasonInForce, "it is in force")
		conditions.Delete(obj, v1alpha1.ConditionStalled)
	}
	observe(obj)
	if equality.Semantic.DeepEqual(before, obj) {
		return nil
	}
	// One write with all of it, and none over anything newer: Ready and the
	// generation it speaks of go together.
	err := r.Client.Status().Patch(ctx, obj, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner("skep-controller"))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("patch status of %T %s: %w", obj, client.ObjectKeyFromObject(obj), err)
	}
	r.tell(before, o.Err)
	return nil
}

// observe notes which generation a status speaks of, and which request for it.
func observe(o client.Object) {
	generation, asked := o.GetGeneration(), o.GetAnnotations()[meta.ReconcileRequestAnnotation]
	switch o := o.(type) {
	case *v1alpha1.BpfSigner:
		o.Status.ObservedGeneration, o.Status.LastHandledReconcileAt = generation, asked
	case *v1alpha1.ClusterBpfPolicy:
		o.Status.ObservedGeneration, o.Status.LastHandledReconcileAt = generation, asked
	case *v1alpha1.BpfPolicy:
		o.Status.ObservedGeneration, o.Status.LastHandledReconcileAt = generation, asked
	}
}

// tell writes an event where an object cannot be used for another reason than
// its status said, and where it can be again.
func (r *Reconciler) tell(o conditions.Setter, broken error) {
	was := conditions.Get(o, v1alpha1.ConditionReady)
	failed := was != nil && was.Reason == ReasonInvalid
	switch {
	case broken != nil && (!failed || was.Message != broken.Error()):
		r.Events.Eventf(o, nil, corev1.EventTypeWarning, ReasonInvalid, "Compile", "it cannot be used: %s", broken)
	case broken == nil && failed:
		r.Events.Eventf(o, nil, corev1.EventTypeNormal, ReasonInForce, "Compile", "it is in force again")
	}
}
