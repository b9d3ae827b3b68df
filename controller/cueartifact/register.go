package cueartifact

import (
	"context"
	"fmt"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate/evaluations"
)

// bySource is the field index of CueArtifacts by their source; see sourceKey.
const bySource = ".spec.sourceRef"

// queue is what the reconciler works off.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// signal says that every CueArtifact is to be looked at.
type signal chan struct{}

func (s signal) raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Register has a manager run the Reconciler on the leader. again has all CueArtifacts looked at
// where signers or policies changed.
func (r *Reconciler) Register(ctx context.Context, mgr ctrl.Manager) (again func(), err error) {
	r.memory, r.changed, r.Flux = newMemory(), make(signal, 1), mgr.GetCache()
	if err := r.findKinds(mgr.GetRESTMapper()); err != nil {
		return nil, err
	}
	if r.Leader != nil {
		mgr = r.Leader.Manager(mgr)
		r.Leader.Reset(r.memory.reset)
		r.Leader.Add(r)
	} else if err := mgr.Add(r); err != nil {
		return nil, err
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.CueArtifact{}, bySource, func(o client.Object) []string {
		artifact := o.(*v1alpha1.CueArtifact)
		return []string{sourceKey(artifact.Spec.SourceRef.Kind, sourceName(artifact))}
	}); err != nil {
		return nil, err
	}
	written := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, requested()))
	b := ctrl.NewControllerManagedBy(mgr).Named("cueartifact").
		WithOptions(controller.Options{MaxConcurrentReconciles: r.concurrent()}).
		For(&v1alpha1.CueArtifact{}, written).
		Owns(fluxObject(sourcev1.ExternalArtifactKind)).
		WatchesRawSource(source.Func(r.requeue))
	for _, kind := range sources {
		if r.kinds[kind] {
			b = b.Watches(fluxObject(kind), r.renderedFrom(kind), builder.WithPredicates(revised()))
		}
	}
	return r.changed.raise, b.Complete(r)
}

// findKinds looks up which kinds of sources the cluster has. Without ExternalArtifact nothing
// can be published.
func (r *Reconciler) findKinds(mapper apimeta.RESTMapper) error {
	r.kinds = map[string]bool{}
	for _, kind := range sources {
		_, err := mapper.RESTMapping(schema.GroupKind{Group: sourcev1.GroupVersion.Group, Kind: kind}, sourcev1.GroupVersion.Version)
		if err != nil && !apimeta.IsNoMatchError(err) {
			return fmt.Errorf("look up kind %s: %w", kind, err)
		}
		r.kinds[kind] = err == nil
	}
	if !r.kinds[sourcev1.ExternalArtifactKind] {
		return fmt.Errorf("serve CueArtifacts: the cluster has no kind ExternalArtifact of %s: install Flux 2.7 or later, or leave --artifact-address out",
			sourcev1.GroupVersion)
	}
	return nil
}

// Start asks registries for what is rendered, for a term as the leader.
func (r *Reconciler) Start(ctx context.Context) error {
	if err := r.sweep(ctx); err != nil {
		// The room that it takes is counted.
		ctrl.LoggerFrom(ctx).Error(err, "remove artifacts of CueArtifacts that are gone")
	}
	asked := evaluations.NewQueue(r.now)
	r.set(ctx, asked)
	<-ctx.Done()
	r.set(ctx, nil)
	asked.Wait()
	return nil
}

// sweep removes from the store what no CueArtifact has.
func (r *Reconciler) sweep(ctx context.Context) error {
	return r.Store.Sweep(func() (map[types.NamespacedName]bool, error) {
		var all v1alpha1.CueArtifactList
		if err := r.Live.List(ctx, &all); err != nil {
			return nil, fmt.Errorf("list CueArtifacts: %w", err)
		}
		exist := map[types.NamespacedName]bool{}
		for i := range all.Items {
			exist[client.ObjectKeyFromObject(&all.Items[i])] = true
		}
		return exist, nil
	})
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: the Elector starts it.
func (r *Reconciler) NeedLeaderElection() bool { return false }

// set sets what asks registries.
func (r *Reconciler) set(term context.Context, q *evaluations.Queue) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.term, r.queue = term, q
	r.changed.raise()
}

// requeue asks for CueArtifacts whose applications a registry answered about, and for all where
// signers or policies changed, or this replica comes to lead.
func (r *Reconciler) requeue(ctx context.Context, q queue) error {
	r.Leader.Elected(r.changed.raise)
	go func() {
		for ctx.Err() == nil {
			var ended <-chan struct{}
			if _, asked := r.asking(); asked != nil {
				ended = asked.Ended()
			}
			select {
			case <-ctx.Done():
			case <-ended:
				for _, name := range r.memory.waiting() {
					q.Add(reconcile.Request{NamespacedName: name})
				}
			case <-r.changed:
				r.enqueueAll(ctx, q)
			}
		}
	}()
	return nil
}

// enqueueAll asks for every CueArtifact.
func (r *Reconciler) enqueueAll(ctx context.Context, q queue) {
	var all v1alpha1.CueArtifactList
	if err := r.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list CueArtifacts")
	}
	for i := range all.Items {
		q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
	}
}

// renderedFrom asks for the CueArtifacts of a source.
func (r *Reconciler) renderedFrom(kind string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) (requests []reconcile.Request) {
		var list v1alpha1.CueArtifactList
		key := sourceKey(kind, client.ObjectKeyFromObject(o))
		if err := r.Client.List(ctx, &list, client.MatchingFields{bySource: key}, client.UnsafeDisableDeepCopy); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "list CueArtifacts of source", "source", key)
		}
		for i := range list.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
		return requests
	})
}

// requested lets through a request for a reconcile.
func requested() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return true }, DeleteFunc: func(event.DeleteEvent) bool { return true },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetAnnotations()[meta.ReconcileRequestAnnotation] != e.ObjectNew.GetAnnotations()[meta.ReconcileRequestAnnotation]
		},
	}
}

// revised lets through what is rendered of a source: another artifact, and whether it is
// verified.
func revised() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, now := state(e.ObjectOld), state(e.ObjectNew)
		x, y := before.Artifact, now.Artifact
		if (x == nil) != (y == nil) || x != nil && (x.Revision != y.Revision || x.Digest != y.Digest || x.URL != y.URL) {
			return true
		}
		return before.verified() != now.verified()
	}}
}

// state is what is read of a source; nothing where it cannot be decoded.
func state(o client.Object) (s sourceState) {
	if o, ok := o.(*unstructured.Unstructured); ok {
		s, _ = stateOf(o)
	}
	return s
}
