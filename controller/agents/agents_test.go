package agents

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// pods is a cache of Pods by name.
type pods map[string]*corev1.Pod

// Get implements client.Reader.
func (p pods) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// List implements client.Reader.
func (p pods) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	for _, name := range slices.Sorted(maps.Keys(p)) {
		list.(*corev1.PodList).Items = append(list.(*corev1.PodList).Items, *p[name])
	}
	return nil
}

// world is a Watch with what it is told, and the time.
type world struct {
	*Watch
	t       *testing.T
	pods    pods
	now     time.Time
	events  func(o, n *corev1.Pod)
	changes int
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, pods: pods{}, now: time.Unix(0, 0)}
	w.Watch = &Watch{Reader: w.pods, Changed: func() { w.changes++ }, Now: func() time.Time { return w.now }}
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(q.ShutDown)
	h := w.Watch.events()
	w.events = func(before, now *corev1.Pod) {
		switch {
		case before == nil:
			h.Create(t.Context(), event.CreateEvent{Object: now}, q)
		case now == nil:
			h.Delete(t.Context(), event.DeleteEvent{Object: before}, q)
		default:
			h.Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: now}, q)
		}
	}
	return w
}

// set puts a Pod into the cache, or takes it out where there is to be none.
func (w *world) set(name, node string, status corev1.ConditionStatus) {
	w.t.Helper()
	before := w.pods[name]
	if node == "" {
		delete(w.pods, name)
		w.events(before, nil)
		return
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.NodeName = node
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	trimmed, err := trim(p)
	if err != nil {
		w.t.Fatal(err)
	}
	w.pods[name] = trimmed.(*corev1.Pod)
	w.events(before, w.pods[name])
}

// runs holds the Watch to where agents run, to how often it has told of a
// change, and to when it will look again.
func (w *world) runs(changes int, again time.Duration, want ...string) {
	w.t.Helper()
	result, err := w.Reconcile(w.t.Context(), one)
	if err != nil {
		w.t.Fatal(err)
	}
	nodes, _, err := w.Nodes(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(nodes))); diff != "" {
		w.t.Errorf("agents run (-want +got):\n%s", diff)
	}
	if w.changes != changes || result.RequeueAfter != again {
		w.t.Errorf("told of %d changes, want %d; looks again in %s, want %s", w.changes, changes, result.RequeueAfter, again)
	}
}

func TestAnAgentThatIsReplacedIsNoChange(t *testing.T) {
	w := newWorld(t)
	w.set("a", "one", corev1.ConditionTrue)
	w.runs(1, 0, "one")
	w.set("a", "one", corev1.ConditionFalse)
	w.runs(1, DefaultGrace, "one")
	w.now = w.now.Add(DefaultGrace / 3)
	w.set("a", "", "")
	w.runs(1, DefaultGrace-DefaultGrace/3, "one")
	w.set("b", "one", corev1.ConditionFalse)
	w.set("b", "one", corev1.ConditionTrue)
	w.runs(1, 0, "one")
	w.now = w.now.Add(time.Hour)
	w.runs(1, 0, "one")
}

func TestAnAgentThatStaysAwayIsOne(t *testing.T) {
	w := newWorld(t)
	w.set("a", "one", corev1.ConditionTrue)
	w.set("b", "two", corev1.ConditionTrue)
	w.runs(1, 0, "one", "two")
	w.set("b", "", "")
	w.now = w.now.Add(DefaultGrace / 2)
	w.set("a", "one", corev1.ConditionFalse)
	w.runs(1, DefaultGrace-DefaultGrace/2, "one", "two")
	w.now = w.now.Add(DefaultGrace - DefaultGrace/2)
	w.runs(2, DefaultGrace/2, "one")
	w.now = w.now.Add(DefaultGrace / 2)
	w.runs(3, 0)
	w.set("a", "one", corev1.ConditionTrue)
	w.runs(4, 0, "one")
}

func TestAnAgentThatWasNeverThereHasNoGrace(t *testing.T) {
	w := newWorld(t)
	w.set("a", "one", corev1.ConditionFalse)

	w.runs(1, 0)
}

func TestOfAPodNothingIsKeptThatIsNotRead(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", Labels: map[string]string{"l": "v"}, Annotations: map[string]string{"a": "v"}}}
	p.Spec.NodeName = "one"
	p.Spec.Containers = []corev1.Container{{Name: "agent", Env: []corev1.EnvVar{{Name: "SECRET", Value: "x"}}}}
	p.Status.PodIP = "10.0.0.1"
	p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: "long"},
	}
	want := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", Labels: map[string]string{"l": "v"}}}
	want.Spec.NodeName = "one"
	want.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	got, err := trim(p)
	if diff := cmp.Diff(any(want), got); diff != "" || err != nil {
		t.Errorf("kept (-want +got): %v\n%s", err, diff)
	}
}
