package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// phases counts how often an application's status was written in each phase, in
// their order: a phase lasts while conditions, digest, intent and step are the
// same, whatever the nodes say.
type phases struct {
	mu     sync.Mutex
	last   string
	names  []string
	writes []int
}

// follow watches an application until ctx ends.
func (p *phases) follow(ctx context.Context, from client.WithWatch, app *v1alpha1.ClusterBpfApplication) error {
	w, err := from.Watch(ctx, &v1alpha1.ClusterBpfApplicationList{}, client.MatchingFields{"metadata.name": app.Name})
	if err != nil {
		return err
	}
	go func() {
		said := ""
		for e := range w.ResultChan() {
			now, ok := e.Object.(*v1alpha1.ClusterBpfApplication)
			if !ok {
				continue
			}
			status, err := json.Marshal(now.Status)
			if err != nil || string(status) == said || now.Status.ObservedGeneration < 1 {
				continue
			}
			said = string(status)
			p.note(now)
		}
	}()
	return nil
}

func (p *phases) note(app *v1alpha1.ClusterBpfApplication) {
	phase := fmt.Sprint(app.Status.Digest[:15], " ", app.Status.Serial)
	if r := app.Status.Rollout; r != nil {
		phase += fmt.Sprint(" step ", r.Step, " ", r.State)
	}
	conditions := slices.Clone(app.Status.Conditions)
	slices.SortFunc(conditions, func(a, b metav1.Condition) int { return len(a.Type) - len(b.Type) })
	for _, c := range conditions {
		phase += fmt.Sprint(" ", c.Type, "=", c.Status, "/", c.Reason)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if phase != p.last {
		p.last, p.names, p.writes = phase, append(p.names, phase), append(p.writes, 0)
	}
	p.writes[len(p.writes)-1]++
}

func (p *phases) all() (names []string, writes []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.names), slices.Clone(p.writes)
}

// TestAPhaseTakesNoMoreThanTwoStatusWrites brings two versions to nodes that come
// along one by one.
func TestAPhaseTakesNoMoreThanTwoStatusWrites(t *testing.T) {
	const nodes = 40
	c := newCluster(t)
	c.control()
	c.create(c.Signer("team-a"))
	first, _ := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	second, _ := c.Push("app:v2", append(slices.Clone(programs.Object("tracepoint_count")), 0), "team-a")
	for i := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}
		c.create(n)
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if err := c.Status().Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	c.simulates(nodes)
	watching, err := client.NewWithWatch(c.plane.Config, client.Options{Scheme: c.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	app, seen := application("app", first), &phases{}
	app.Spec.Rollout = nil
	if err := seen.follow(t.Context(), watching, app); err != nil {
		t.Fatal(err)
	}
	c.create(app)
	c.summary(app, fmt.Sprintf("%d/%d", nodes, nodes))
	serial := app.Status.Serial
	c.change(app, func() { app.Spec.Bytecode.Image = second })
	c.until("the status to be of the second version", func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		if app.Status.Serial == serial {
			return fmt.Errorf("it is of serial %d", serial)
		}
		return nil
	})
	c.summary(app, fmt.Sprintf("%d/%d", nodes, nodes))
	c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	names, writes := seen.all()
	for i, n := range writes {
		t.Logf("%d: %s", n, names[i])
		if n > 2 {
			t.Errorf("%d status writes in one phase", n)
		}
	}
}
