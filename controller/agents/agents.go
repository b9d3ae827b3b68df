// Package agents tells on which nodes of a cluster an agent runs, from the Pods
// that the kubelets keep up to date: agents write nothing to say that they live.
//
// It reads Pods of Skep's own namespace alone, and of each no more than it
// needs. It decides nothing about applications.
package agents

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/skep-dev/skep/clock"
)

// Options says which Pods are agents'.
type Options struct {
	// Selector chooses the agents' Pods among those of Skep's namespace. Nil means
	// that nobody looks, and an agent is taken to run on every node.
	Selector labels.Selector
	// Grace is how long a node without an agent counts as having one, so that
	// replacing the agents makes nobody write a status; zero means DefaultGrace.
	Grace time.Duration
}

// DefaultGrace is longer than it takes to replace an agent.
const DefaultGrace = 30 * time.Second

// remembered is how long it is known when the agent of a node went whose Pod is
// gone as well.
const remembered = 24 * time.Hour

// Enabled reports whether Pods are looked at.
func (o Options) Enabled() bool { return o.Selector != nil }

// Cache narrows what a manager's cache holds of Pods, so that RBAC can grant it
// the one namespace.
func (o Options) Cache(namespace string) map[client.Object]cache.ByObject {
	if !o.Enabled() {
		return nil
	}
	return map[client.Object]cache.ByObject{&corev1.Pod{}: {
		Namespaces: map[string]cache.Config{namespace: {LabelSelector: o.Selector}},
		Transform:  trim,
	}}
}

// trim keeps of a Pod what is read: where it is, and whether it is ready.
func trim(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	trimmed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
	}}
	trimmed.Spec.NodeName = p.Spec.NodeName
	if c := readiness(p); c != nil {
		trimmed.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
	}
	return trimmed, nil
}

// ready reports whether the kubelet found an agent to be well. Where the kubelet
// is away, the API server's node controller says for it that it is not.
func ready(p *corev1.Pod) bool {
	c := readiness(p)
	return c != nil && c.Status == corev1.ConditionTrue
}

// readiness is what the kubelet says of that; nil where it has said nothing.
func readiness(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c
		}
	}
	return nil
}

// Watch knows where agents run.
type Watch struct {
	// Reader reads from the cache that Options.Cache narrowed. Needed.
	Reader client.Reader
	// Options choose the Pods.
	Options Options
	// Changed is called when an agent runs on other nodes than before. Needed.
	Changed func()
	// Now is the clock; nil means time.Now.
	Now func() time.Time

	// mu guards what follows.
	mu sync.Mutex
	// lost is when a node's agent was last seen to go.
	lost map[string]time.Time
	// told is what Nodes said when Changed was last called.
	told map[string]bool
}

// Register has a manager run it on every replica: one that comes to lead knows
// for how long an agent has been away.
func (w *Watch) Register(mgr ctrl.Manager) error {
	everywhere := false
	return ctrl.NewControllerManagedBy(mgr).Named("agents").
		WithOptions(controller.Options{NeedLeaderElection: &everywhere}).
		Watches(&corev1.Pod{}, w.events()).
		Complete(w)
}

// queue is what Watch works off.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// one is the only request there is.
var one = reconcile.Request{NamespacedName: types.NamespacedName{Name: "agents"}}

// events notes when an agent goes.
func (w *Watch) events() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, _ event.CreateEvent, q queue) { q.Add(one) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			before, now := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
			if ready(before) && !ready(now) {
				w.lose(before.Spec.NodeName)
			}
			if ready(before) != ready(now) {
				q.Add(one)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			if p := e.Object.(*corev1.Pod); ready(p) {
				w.lose(p.Spec.NodeName)
			}
			q.Add(one)
		},
	}
}

// lose notes that a node's agent went.
func (w *Watch) lose(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost == nil {
		w.lost = map[string]time.Time{}
	}
	w.lost[node] = w.now()
}

// Nodes names the nodes an agent runs on, or ran on a short while ago, and since
// when none does on others, where a Pod or an event says so.
func (w *Watch) Nodes(ctx context.Context) (runs map[string]bool, gone map[string]time.Time, err error) {
	nodes, gone, _, err := w.look(ctx)
	return nodes, gone, err
}

// look is Nodes, and how long until it says something else without an event;
// zero means never.
func (w *Watch) look(ctx context.Context) (nodes map[string]bool, gone map[string]time.Time, next time.Duration, err error) {
	var pods corev1.PodList
	if err := w.Reader.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, 0, fmt.Errorf("list agents: %w", err)
	}
	nodes, gone = map[string]bool{}, map[string]time.Time{}
	for i := range pods.Items {
		p := &pods.Items[i]
		switch c := readiness(p); {
		case p.Spec.NodeName == "" || c == nil:
		case c.Status == corev1.ConditionTrue:
			nodes[p.Spec.NodeName] = true
		default:
			gone[p.Spec.NodeName] = c.LastTransitionTime.Time
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, since := range w.lost {
		left := cmp.Or(w.Options.Grace, DefaultGrace) - w.now().Sub(since)
		switch {
		case nodes[node] || w.now().Sub(since) > remembered:
			delete(w.lost, node)
		case left <= 0:
			gone[node] = since
		default:
			nodes[node] = true
			if next == 0 || left < next {
				next = left
			}
		}
	}
	return nodes, gone, next, nil
}

// Reconcile tells of a change once.
func (w *Watch) Reconcile(ctx context.Context, _ reconcile.Request) (ctrl.Result, error) {
	nodes, _, next, err := w.look(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	w.mu.Lock()
	same := w.told != nil && maps.Equal(w.told, nodes)
	w.told = nodes
	w.mu.Unlock()
	if !same {
		w.Changed()
	}
	return ctrl.Result{RequeueAfter: next}, nil
}

func (w *Watch) now() time.Time { return clock.OrSystem(w.Now)() }
