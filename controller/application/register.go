package application

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

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
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/leader"
	"github.com/skep-dev/skep/controller/nodereports"
	"github.com/skep-dev/skep/controller/policy"
)

// evaluationsAtOnce bounds how many applications are evaluated at the same time: enough
// that namespaces whose registries hang hold up no others (see limiter), few
// enough to spare a registry.
const evaluationsAtOnce = 32

// queue is what the reconciler works off.
type queue = workqueue.TypedRateLimitingInterface[v1alpha1.Identity]

// watches asks for the applications that a change is about.
type watches struct {
	client client.Reader
	leader *leader.Elector
	// gathering spaces what node reports ask for, by the clock now.
	gathering *reportDebounce
	now       func() time.Time
}

// Register has a manager run the Reconciler on the leader. again has applications
// evaluated anew where signers or policies changed.
func (r *Reconciler) Register(ctx context.Context, mgr ctrl.Manager) (again func(policy.Where), err error) {
	if r.Leader != nil {
		mgr = r.Leader.Manager(mgr)
		r.Leader.Reset(func() {
			r.reset()
			r.Metrics.reset()
		})
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.BpfIntent{}, intents.ByApplication, r.Intents.Index); err != nil {
		return nil, err
	}
	w := watches{r.Client, r.Leader, &r.gathering, r.now}
	everything, rules := make(signal, 1), changes{raised: make(signal, 1)}
	// Annotations ask for things, and policies read them; the controller writes
	// none.
	written := builder.WithPredicates(predicate.Or[client.Object](
		predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
	b := builder.TypedControllerManagedBy[v1alpha1.Identity](mgr).Named("application").
		WithOptions(controller.TypedOptions[v1alpha1.Identity]{MaxConcurrentReconciles: evaluationsAtOnce, RateLimiter: retries[v1alpha1.Identity]()}).
		Watches(&v1alpha1.BpfApplication{}, identify(), written).
		Watches(&v1alpha1.ClusterBpfApplication{}, identify(), written).
		Watches(&v1alpha1.BpfApplication{}, r.patched.observed()).
		Watches(&v1alpha1.ClusterBpfApplication{}, r.patched.observed()).
		WatchesMetadata(&corev1.Namespace{}, handler.TypedEnqueueRequestsFromMapFunc(w.applicationsInNamespace), builder.WithPredicates(relabelled())).
		Watches(&v1alpha1.BpfIntent{}, handler.TypedEnqueueRequestsFromMapFunc(applicationOfIntent)).
		Watches(&v1alpha1.BpfNode{}, w.applicationsOnNode()).
		Watches(&v1alpha1.BpfNode{}, everything, builder.WithPredicates(kernelChanged())).
		Watches(&corev1.Node{}, everything, builder.WithPredicates(nodeChanged())).
		WatchesRawSource(w.all(everything, func() policy.Where { return policy.Where{Everywhere: true} })).
		WatchesRawSource(w.all(rules.raised, rules.take)).
		WatchesRawSource(w.elections())
	return rules.add, errors.Join(b.Complete(r), ender{r}.register(mgr))
}

// retries says when something is looked at again whose reconcile failed: soon, and never later than an application that is denied.
func retries[T comparable]() workqueue.TypedRateLimiter[T] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[T](200*time.Millisecond, soon)
}

// identify makes a request of an application.
func identify() handler.TypedEventHandler[client.Object, v1alpha1.Identity] {
	return handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []v1alpha1.Identity {
		return []v1alpha1.Identity{o.(application).Identity()}
	})
}

// applicationOfIntent is the application that an intent says to people it is of. Whether it
// is, its seal tells whoever looks at the application.
func applicationOfIntent(_ context.Context, o client.Object) []v1alpha1.Identity {
	id := o.(*v1alpha1.BpfIntent).Spec.Application
	if newApplication(id) == nil {
		return nil
	}
	return []v1alpha1.Identity{id}
}

// applicationsOnNode asks for the applications whose state on a node changed; see gathering.
func (w watches) applicationsOnNode() handler.TypedEventHandler[client.Object, v1alpha1.Identity] {
	enqueue := func(ctx context.Context, q queue, before, now client.Object) {
		x, y := before.(*v1alpha1.BpfNode), now.(*v1alpha1.BpfNode)
		for _, id := range append(changed(x, y), w.changedInShort(ctx, x, y)...) {
			q.AddAfter(id, w.gathering.delay(id, w.now()))
		}
	}
	none := &v1alpha1.BpfNode{}
	return handler.TypedFuncs[client.Object, v1alpha1.Identity]{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { enqueue(ctx, q, none, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { enqueue(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { enqueue(ctx, q, e.Object, none) },
	}
}

// changed lists the applications that two reports of one node say different things about,
// unless the node made them up.
func changed(before, now *v1alpha1.BpfNode) (ids []v1alpha1.Identity) {
	for _, id := range nodereports.Changed(before, now) {
		if newApplication(id) != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// changedInShort is changed for reports in short. They have no names, but UIDs, which are
// the names of intents.
func (w watches) changedInShort(ctx context.Context, before, now *v1alpha1.BpfNode) (ids []v1alpha1.Identity) {
	for _, uid := range nodereports.ChangedInShort(before, now) {
		var o v1alpha1.BpfIntent
		if err := w.client.Get(ctx, client.ObjectKey{Name: uid}, &o); err == nil {
			ids = append(ids, o.Spec.Application)
		}
	}
	return ids
}

// signal says that every application is to be looked at. As a handler of events
// it is raised by each.
type signal chan struct{}

func (s signal) raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Create implements handler.TypedEventHandler.
func (s signal) Create(context.Context, event.CreateEvent, queue) { s.raise() }

// Update implements handler.TypedEventHandler.
func (s signal) Update(context.Context, event.UpdateEvent, queue) { s.raise() }

// Delete implements handler.TypedEventHandler.
func (s signal) Delete(context.Context, event.DeleteEvent, queue) { s.raise() }

// Generic implements handler.TypedEventHandler.
func (s signal) Generic(context.Context, event.GenericEvent, queue) { s.raise() }

// changes are where signers or policies changed, and what raises that.
type changes struct {
	raised signal

	mu    sync.Mutex
	where policy.Where
}

// add adds where something changed.
func (c *changes) add(where policy.Where) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.where = c.where.And(where)
	c.raised.raise()
}

// take returns where something changed since it was asked last.
func (c *changes) take() policy.Where {
	c.mu.Lock()
	defer c.mu.Unlock()
	where := c.where
	c.where = policy.Where{}
	return where
}

// all asks for every application where something changed when a signal is raised, once
// for all that raises it while things settle: a thousand nodes that a new leader learns of
// are one change.
func (w watches) all(raised signal, changed func() policy.Where) source.TypedFunc[v1alpha1.Identity] {
	return func(ctx context.Context, q queue) error {
		go func() {
			for wait(ctx, raised) && wait(ctx, time.After(reportSpacing)) {
				select {
				case <-raised:
				default:
				}
				where := changed()
				for _, id := range w.allIdentities(ctx) {
					if where.In(id.Namespace) {
						q.Add(id)
					}
				}
			}
		}()
		return nil
	}
}

// elections asks for every application when this replica comes to lead: what
// changed meanwhile was another's to look at. Nodes may report what has neither a
// definition nor an intent.
func (w watches) elections() source.TypedFunc[v1alpha1.Identity] {
	return func(ctx context.Context, q queue) error {
		elected := make(signal, 1)
		w.leader.Elected(elected.raise)
		go func() {
			for wait(ctx, elected) {
				for _, id := range append(w.allIdentities(ctx), w.reported(ctx)...) {
					q.Add(id)
				}
			}
		}()
		return nil
	}
}

// reported lists the applications that nodes report.
func (w watches) reported(ctx context.Context) (ids []v1alpha1.Identity) {
	var nodes v1alpha1.BpfNodeList
	if err := w.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list what nodes report")
	}
	for i := range nodes.Items {
		ids = append(ids, changed(&v1alpha1.BpfNode{}, &nodes.Items[i])...)
	}
	return ids
}

// wait reports whether something came before ctx ended.
func wait[T any](ctx context.Context, c <-chan T) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// allIdentities lists all there is to work on: applications, and intents that outlived
// theirs.
func (w watches) allIdentities(ctx context.Context) []v1alpha1.Identity {
	var ids []v1alpha1.Identity
	for _, list := range []client.ObjectList{&v1alpha1.BpfApplicationList{}, &v1alpha1.ClusterBpfApplicationList{}, &v1alpha1.BpfIntentList{}} {
		if err := w.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "list what to evaluate again")
		}
		_ = apimeta.EachListItem(list, func(o runtime.Object) error {
			switch o := o.(type) {
			case application:
				ids = append(ids, o.Identity())
			case *v1alpha1.BpfIntent:
				ids = append(ids, applicationOfIntent(ctx, o)...)
			}
			return nil
		})
	}
	return ids
}

// applicationsInNamespace lists the applications of a namespace, whose labels policies read.
func (w watches) applicationsInNamespace(ctx context.Context, ns client.Object) []v1alpha1.Identity {
	var list v1alpha1.BpfApplicationList
	if err := w.client.List(ctx, &list, client.InNamespace(ns.GetName()), client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list applications of namespace", "namespace", ns.GetName())
	}
	ids := make([]v1alpha1.Identity, 0, len(list.Items))
	for i := range list.Items {
		ids = append(ids, list.Items[i].Identity())
	}
	return ids
}

// relabelled lets through other labels of what was there before: what is in a
// namespace that comes or goes comes or goes itself.
func relabelled() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: predicate.LabelChangedPredicate{}.Update,
	}
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
		return nodereports.Ready(before) != nodereports.Ready(now) || !maps.Equal(before.Labels, now.Labels)
	}}
}
