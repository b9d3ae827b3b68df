package application

import (
	"context"
	"maps"
	"time"

	fluxpredicates "github.com/fluxcd/pkg/runtime/predicates"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// judgesAtOnce bounds how many applications are judged at the same time: enough
// that namespaces whose registries hang hold up no others (see lanes), few
// enough to spare a registry.
const judgesAtOnce = 32

// settle is how long what nodes report is gathered before it is folded: a
// thousand nodes that load at once make a few patches, not a thousand.
const settle = 500 * time.Millisecond

// queue is what the reconciler works off.
type queue = workqueue.TypedRateLimitingInterface[v1alpha1.Identity]

// Register has a manager run the Reconciler on its leader. again has every
// application judged anew.
func (r *Reconciler) Register(ctx context.Context, mgr ctrl.Manager) (again func(), err error) {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.BpfIntent{}, byApplication, r.indexIntent); err != nil {
		return nil, err
	}
	everything := make(chan event.TypedGenericEvent[struct{}], 1)
	written := builder.WithPredicates(predicate.Or[client.Object](
		predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, fluxpredicates.ReconcileRequestedPredicate{}, steered()))
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[v1alpha1.Identity](200*time.Millisecond, 5*time.Minute)
	b := builder.TypedControllerManagedBy[v1alpha1.Identity](mgr).Named("application").
		WithOptions(controller.TypedOptions[v1alpha1.Identity]{MaxConcurrentReconciles: judgesAtOnce, RateLimiter: limiter}).
		Watches(&v1alpha1.BpfApplication{}, identify(), written).
		Watches(&v1alpha1.ClusterBpfApplication{}, identify(), written).
		Watches(&v1alpha1.BpfIntent{}, handler.TypedEnqueueRequestsFromMapFunc(r.ofIntent)).
		Watches(&v1alpha1.BpfNode{}, r.ofNode()).
		Watches(&v1alpha1.BpfNode{}, r.ofEvery(), builder.WithPredicates(kernelChanged())).
		Watches(&corev1.Node{}, r.ofEvery(), builder.WithPredicates(nodeChanged())).
		WatchesRawSource(source.TypedChannel(everything, r.everything()))
	return func() {
		select {
		case everything <- event.TypedGenericEvent[struct{}]{}:
		default:
		}
	}, b.Complete(r)
}

// identify makes a request of an application.
func identify() handler.TypedEventHandler[client.Object, v1alpha1.Identity] {
	return handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []v1alpha1.Identity {
		return []v1alpha1.Identity{o.(application).Identity()}
	})
}

// ofIntent is the application that an intent's seal names.
func (r *Reconciler) ofIntent(_ context.Context, o client.Object) []v1alpha1.Identity {
	s, ok := r.open(o.(*v1alpha1.BpfIntent))
	if !ok {
		return nil
	}
	return []v1alpha1.Identity{s.payload.Application}
}

// ofNode asks for the applications whose state on a node changed, after others
// had time to change too.
func (r *Reconciler) ofNode() handler.TypedEventHandler[client.Object, v1alpha1.Identity] {
	enqueue := func(ctx context.Context, q queue, before, now client.Object) {
		x, y := before.(*v1alpha1.BpfNode), now.(*v1alpha1.BpfNode)
		for _, id := range append(changed(x, y), r.shortly(ctx, x, y)...) {
			q.AddAfter(id, settle)
		}
	}
	none := &v1alpha1.BpfNode{}
	return handler.TypedFuncs[client.Object, v1alpha1.Identity]{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { enqueue(ctx, q, none, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { enqueue(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { enqueue(ctx, q, e.Object, none) },
	}
}

// changed lists the applications of which a node says something else than
// before.
func changed(before, now *v1alpha1.BpfNode) []v1alpha1.Identity {
	said := map[string]v1alpha1.NodeApplication{}
	for _, a := range before.Status.Applications {
		said[a.UID] = a
	}
	var ids []v1alpha1.Identity
	add := func(a v1alpha1.NodeApplication) {
		if id := (v1alpha1.Identity{Kind: a.Kind, Namespace: a.Namespace, Name: a.Name}); newApplication(id) != nil {
			ids = append(ids, id)
		}
	}
	for _, a := range now.Status.Applications {
		if said[a.UID] != a {
			add(a)
		}
		delete(said, a.UID)
	}
	for _, a := range said {
		add(a)
	}
	return ids
}

// ofEvery asks for every application.
func (r *Reconciler) ofEvery() handler.TypedEventHandler[client.Object, v1alpha1.Identity] {
	all := func(ctx context.Context, q queue) {
		for _, id := range r.every(ctx) {
			q.AddAfter(id, settle)
		}
	}
	return handler.TypedFuncs[client.Object, v1alpha1.Identity]{
		CreateFunc: func(ctx context.Context, _ event.CreateEvent, q queue) { all(ctx, q) },
		UpdateFunc: func(ctx context.Context, _ event.UpdateEvent, q queue) { all(ctx, q) },
		DeleteFunc: func(ctx context.Context, _ event.DeleteEvent, q queue) { all(ctx, q) },
	}
}

// everything asks for every application at once: signers or policies changed.
func (r *Reconciler) everything() handler.TypedEventHandler[struct{}, v1alpha1.Identity] {
	return handler.TypedFuncs[struct{}, v1alpha1.Identity]{
		GenericFunc: func(ctx context.Context, _ event.TypedGenericEvent[struct{}], q queue) {
			for _, id := range r.every(ctx) {
				q.Add(id)
			}
		},
	}
}

// every lists all there is to work on: applications, and intents that outlived
// theirs.
func (r *Reconciler) every(ctx context.Context) []v1alpha1.Identity {
	var ids []v1alpha1.Identity
	for _, list := range []client.ObjectList{&v1alpha1.BpfApplicationList{}, &v1alpha1.ClusterBpfApplicationList{}, &v1alpha1.BpfIntentList{}} {
		if err := r.Client.List(ctx, list); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "list what to judge again")
		}
		_ = apimeta.EachListItem(list, func(o runtime.Object) error {
			switch o := o.(type) {
			case application:
				ids = append(ids, o.Identity())
			case *v1alpha1.BpfIntent:
				ids = append(ids, r.ofIntent(ctx, o)...)
			}
			return nil
		})
	}
	return ids
}

// steered lets through what people ask of a rollout.
func steered() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, now := e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations()
		return before[v1alpha1.AnnotationResume] != now[v1alpha1.AnnotationResume] || before[v1alpha1.AnnotationUndo] != now[v1alpha1.AnnotationUndo]
	}}
}

// kernelChanged lets through what decides which nodes can hold an application: a
// node that begins to report or no longer does, and another kernel.
func kernelChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, now := e.ObjectOld.(*v1alpha1.BpfNode), e.ObjectNew.(*v1alpha1.BpfNode)
		return !equality.Semantic.DeepEqual(before.Status.Kernel, now.Status.Kernel)
	}}
}

// nodeChanged lets through what decides where applications go: a node that
// comes, goes, changes its labels, or is ready or no longer.
func nodeChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, now := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
		return ready(before) != ready(now) || !maps.Equal(before.Labels, now.Labels)
	}}
}
