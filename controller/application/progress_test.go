package application

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestNodesThatComeAlongMakeFewWrites counts the writes of a status while nodes
// come along one by one, in so much time for all of them.
func TestNodesThatComeAlongMakeFewWrites(t *testing.T) {
	const nodes = 20
	for _, c := range []struct {
		takes time.Duration
		most  int
	}{
		{4 * time.Second, 1}, {12 * time.Second, 2}, {5 * time.Minute, 10},
	} {
		t.Run(c.takes.String(), func(t *testing.T) {
			b := newBench(t)
			app := b.application("app")
			b.reconcile(app.Identity())
			for i := range nodes {
				b.node(fmt.Sprint("node-", i), b.says(app, v1alpha1.NodePending))
			}
			b.clock = b.clock.Add(time.Minute)
			b.reconcile(app.Identity())
			writes, version, held := 0, b.status(app).ResourceVersion, false
			for i := range nodes {
				b.clock = b.clock.Add(c.takes / nodes)
				report := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}}
				b.change(report, func() { report.Status.Applications[0].State = v1alpha1.NodeLoaded })
				again := b.reconcile(app.Identity())
				now := b.status(app)
				if now.ResourceVersion == version {
					held = true
					if again.RequeueAfter <= 0 || again.RequeueAfter > progressAtEnd {
						t.Fatalf("what is held back is looked at again after %s", again.RequeueAfter)
					}
					continue
				}
				writes, version = writes+1, now.ResourceVersion
			}
			now := b.status(app)
			if ready := condition(now, v1alpha1.ConditionReady); ready.Status != metav1.ConditionTrue || now.Status.Nodes.Loaded != nodes {
				t.Errorf("at the end it says %+v, %s", ready, now.Status.Nodes.Summary)
			}
			// The last one changes the phase.
			if writes-1 > c.most || !held {
				t.Errorf("%d writes on the way, want at most %d", writes-1, c.most)
			}
		})
	}
}

func TestWhatIsHeldBackIsToldInTheEnd(t *testing.T) {
	b := newBench(t)
	app := b.application("app")
	b.reconcile(app.Identity())
	for _, name := range []string{"one", "two", "three"} {
		b.node(name, b.says(app, v1alpha1.NodePending))
	}
	b.reconcile(app.Identity())
	report := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	b.change(report, func() { report.Status.Applications[0].State = v1alpha1.NodeLoaded })
	again := b.reconcile(app.Identity())
	if n := b.status(app).Status.Nodes; n.Loaded != 0 || again.RequeueAfter > progressAfter {
		t.Fatalf("%s, and again after %s", n.Summary, again.RequeueAfter)
	}
	b.clock = b.clock.Add(again.RequeueAfter)
	b.reconcile(app.Identity())
	if n := b.status(app).Status.Nodes; n.Loaded != 1 {
		t.Errorf("after that, %s", n.Summary)
	}
}
