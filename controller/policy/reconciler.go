package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
// says on each whether it is active.
type Reconciler struct {
	Client client.Client
	Keeper *Keeper
	// Weigher weighs a change before it acts on what runs.
	Weigher Weigher
	// Changed is called when other signers or policies are active than before,
	// or a human confirmed them: what is there is to be evaluated again.
	Changed func(Where)
	// Events tells people of what cannot be used. Needed.
	Events events.EventRecorder
	// Interval is how often all is read again without an event, and sealed anew where
	// the key changed; zero means five minutes, half of what a former key is trusted
	// for at least.
	Interval time.Duration
	// NamespacedEvery is how often policies of namespaces alone change what is active,
	// where they change again and again: each time, all that is being evaluated there
	// begins anew. After quiet, namespacedAtOnce changes act at once. Zero means half a minute.
	NamespacedEvery time.Duration
	// Leader decides whether this replica writes; nil means that it does.
	Leader *leader.Elector

	namespaced editLimit
}

// The requests there are. Signers and policies become active together; those of
// namespaces are compiled before that, and whatever changes of the cluster waits for
// none of them.
var (
	ofCluster    = reconcile.Request{NamespacedName: types.NamespacedName{Name: "signers-and-policies"}}
	ofNamespaces = reconcile.Request{NamespacedName: types.NamespacedName{Name: "policies-of-namespaces"}}
)

// Register has a manager run the Reconciler. Every replica runs it, since every
// replica answers admission requests; only the leader writes.
func (r *Reconciler) Register(mgr ctrl.Manager) error {
	ask := func(what reconcile.Request) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{what} })
	}
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
	everywhere := false
	return ctrl.NewControllerManagedBy(mgr).Named("policy").
		WithOptions(controller.Options{NeedLeaderElection: &everywhere, MaxConcurrentReconciles: 2}).
		Watches(&v1alpha1.BpfSigner{}, handler.EnqueueRequestsFromMapFunc(r.signerChanged), changed).
		Watches(&v1alpha1.ClusterBpfPolicy{}, ask(ofCluster), changed).
		Watches(&v1alpha1.BpfPolicy{}, ask(ofNamespaces), changed).
		WatchesRawSource(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			q.Add(ofCluster)
			q.Add(ofNamespaces)
			r.Leader.Elected(func() { q.Add(ofCluster) })
			return nil
		})).
		Complete(r)
}

// signerChanged asks for all to be read again, before anything else is weighed if a signer
// was revoked.
func (r *Reconciler) signerChanged(_ context.Context, o client.Object) []reconcile.Request {
	spec := o.(*v1alpha1.BpfSigner).Spec
	before, known := r.Keeper.Revoked()[o.GetName()]
	switch {
	case !spec.Revoked && spec.RevokedAfter == nil:
	case !known, !spec.Revoked && !before.After.Equal(spec.RevokedAfter.Time), spec.Revoked && !before.After.IsZero():
		r.Keeper.Interrupt()
	}
	return []reconcile.Request{ofCluster}
}

// Reconcile has what is written become active.
func (r *Reconciler) Reconcile(ctx context.Context, what reconcile.Request) (ctrl.Result, error) {
	if what == ofNamespaces {
		// What is not compiled does not become active with policies of the cluster.
		if wait := r.namespaced.wait(r.Keeper.now(), r.NamespacedEvery); wait > 0 {
			return ctrl.Result{RequeueAfter: wait}, nil
		}
		if err := r.Keeper.Prepare(ctx); err != nil {
			return ctrl.Result{}, err
		}
	}
	outcomes, changed, err := r.Keeper.Refresh(ctx, r.Weigher)
	if errors.Is(err, ErrInterrupted) {
		return ctrl.Result{RequeueAfter: settle}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if changed.Anywhere() {
		if what == ofNamespaces {
			r.namespaced.take(r.Keeper.now(), r.NamespacedEvery)
		}
		ctrl.LoggerFrom(ctx).Info("signers and policies are active", "revision", r.Keeper.Weighed(""), "changed", changed.String(), "objects", len(outcomes))
		r.Changed(changed)
	}
	again := r.again(what, outcomes)
	_, err = r.Leader.Do(ctx, func(ctx context.Context) error {
		behind, err := r.write(ctx, outcomes)
		if behind {
			again = settle
		}
		return err
	})
	return ctrl.Result{RequeueAfter: again}, err
}

// write keeps what is active and reports it on each object. behind tells that the
// cache does not show one as it is, which is nobody's fault.
func (r *Reconciler) write(ctx context.Context, outcomes []Outcome) (behind bool, err error) {
	errs := []error{r.Keeper.Remember(ctx)}
	for _, o := range outcomes {
		if o.Pending && o.Err == nil {
			continue
		}
		err := r.report(ctx, o)
		if apierrors.IsConflict(err) {
			behind = true
			continue
		}
		errs = append(errs, err)
	}
	return behind, errors.Join(errs...)
}

// settle is when an object is looked at again that the cache does not show as it
// is.
const settle = 500 * time.Millisecond

// pending is when what is not compiled yet is asked for again.
const pending = time.Second

// again is when to do so again without an event: all is read again by and by, and what
// is not compiled yet soon.
func (r *Reconciler) again(what reconcile.Request, outcomes []Outcome) time.Duration {
	waits := func(o Outcome) bool { return o.Pending && (o.Object.GetNamespace() == "") == (what == ofCluster) }
	switch {
	case slices.ContainsFunc(outcomes, waits):
		return pending
	case what == ofCluster:
		return r.interval()
	}
	return 0
}

func (r *Reconciler) interval() time.Duration { return cmp.Or(r.Interval, 5*time.Minute) }

// The reasons of Ready on a signer or policy.
const (
	ReasonActive      = "Active"
	ReasonInvalid     = "Invalid"
	ReasonNotCompiled = "NotCompiled"
)

// report says on one object whether it is active, where that is not what it
// says already. Of one that vanished, the log says so.
func (r *Reconciler) report(ctx context.Context, o Outcome) error {
	if o.Vanished {
		ctrl.LoggerFrom(ctx).Info("the CRD of a signer or policy was deleted since, so that its absence says nothing; it stays active. To remove it, "+
			"create it again and delete it",
			"type", fmt.Sprintf("%T", o.Object), "namespace", o.Object.GetNamespace(), "name", o.Object.GetName())
		return nil
	}
	before, ok := o.Object.(conditions.Setter)
	if !ok {
		return fmt.Errorf("report on %T: it has no conditions", o.Object)
	}
	obj := before.DeepCopyObject().(conditions.Setter)
	switch {
	case o.Pending:
		conditions.MarkUnknown(obj, v1alpha1.ConditionReady, ReasonNotCompiled,
			"it could not be compiled, which is tried again; what was active of it before stays: %s", o.Err)
		conditions.Delete(obj, v1alpha1.ConditionStalled)
	case o.Err != nil:
		conditions.MarkFalse(obj, v1alpha1.ConditionReady, ReasonInvalid, "%s", o.Err)
		conditions.MarkStalled(obj, ReasonInvalid, "%s", o.Err)
	default:
		conditions.MarkTrue(obj, v1alpha1.ConditionReady, ReasonActive, "%s", strings.Join(append([]string{"it is active"}, o.Cautions...), "; "))
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
	if !o.Pending {
		r.tell(ctx, before, o)
	}
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
// its status said, where it can be again, and of what its author may not have meant.
func (r *Reconciler) tell(ctx context.Context, before conditions.Setter, o Outcome) {
	was := conditions.Get(before, v1alpha1.ConditionReady)
	failed := was != nil && was.Reason == ReasonInvalid
	switch {
	case o.Err != nil && (!failed || was.Message != o.Err.Error()):
		r.Events.Eventf(before, nil, corev1.EventTypeWarning, ReasonInvalid, "Compile", "it cannot be used: %s", o.Err)
	case o.Err == nil && failed:
		r.Events.Eventf(before, nil, corev1.EventTypeNormal, ReasonActive, "Compile", "it is active again")
	}
	for _, caution := range o.Cautions {
		if o.Err == nil && (was == nil || !strings.Contains(was.Message, caution)) {
			ctrl.LoggerFrom(ctx).Info(caution)
			r.Events.Eventf(before, nil, corev1.EventTypeWarning, ReasonActive, "Compile", "%s", caution)
		}
	}
}
