package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// agentLabels are those of the agents' Pods.
func agentLabels() map[string]string { return map[string]string{"component": "agent"} }

// pod makes a Pod that runs on a node, as a kubelet tells of it.
func (c *cluster) pod(node string, labels map[string]string) *corev1.Pod {
	c.t.Helper()
	return c.podOf("", node, labels)
}

// podOf makes a Pod of a service account; empty means the default one.
func (c *cluster) podOf(account, node string, labels map[string]string) *corev1.Pod {
	c.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "pod-", Labels: labels}}
	p.Spec.ServiceAccountName, p.Spec.NodeName = account, node
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	c.create(p)
	c.t.Cleanup(func() { _ = client.IgnoreNotFound(c.remove(p)) })
	c.says(p, corev1.ConditionTrue)
	return p
}

// remove takes a Pod away at once.
func (c *cluster) remove(p *corev1.Pod) error {
	return c.Delete(context.WithoutCancel(c.t.Context()), p, client.GracePeriodSeconds(0))
}

// says has the kubelet say whether a Pod is ready.
func (c *cluster) says(p *corev1.Pod, ready corev1.ConditionStatus) {
	c.t.Helper()
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	if err := c.Status().Update(c.t.Context(), p); err != nil {
		c.t.Fatal(err)
	}
}

// counts waits until an application's nodes are counted so.
func (c *cluster) counts(app *v1alpha1.ClusterBpfApplication, loaded, unreachable int32) {
	c.t.Helper()
	c.until(fmt.Sprintf("%d loaded, %d unreachable", loaded, unreachable), func() error {
		if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		if n := app.Status.Nodes; n == nil || n.Loaded != loaded || n.Unreachable != unreachable {
			return fmt.Errorf("nodes are %+v", n)
		}
		return nil
	})
}

func TestANodeWithoutItsAgentIsUnreachable(t *testing.T) {
	c := newCluster(t)
	c.control(func(o *controller.Options) {
		o.Agents.Selector, o.Agents.Grace = labels.SelectorFromSet(agentLabels()), time.Millisecond
	})
	c.node("one", nil)
	c.node("two", nil)
	first, second := c.pod("one", agentLabels()), c.pod("two", agentLabels())
	// Another Pod on the node is none of Skep's.
	c.pod("two", map[string]string{"component": "another"})
	c.create(c.Signer("team-a"))
	signed, _ := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	app := application("app", signed)
	c.create(app)
	c.condition(app, v1alpha1.ConditionReconciling, metav1.ConditionTrue, "Progressing")
	c.answers("one", app, v1alpha1.NodeLoaded, "")
	c.answers("two", app, v1alpha1.NodeLoaded, "")
	c.counts(app, 2, 0)

	c.says(first, corev1.ConditionFalse)
	c.counts(app, 1, 1)
	c.says(first, corev1.ConditionTrue)
	c.counts(app, 2, 0)
	if err := c.remove(second); err != nil {
		t.Fatal(err)
	}
	c.counts(app, 1, 1)
	ready := c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	if want := "loaded on 1 of 2 nodes, 1 unreachable (two)"; ready.Message != want {
		t.Errorf("it says %q, want %q", ready.Message, want)
	}

	if err := c.Delete(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	c.until("the application to go", func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(app), app.DeepCopy()); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("it is still there: %w", err)
		}
		return nil
	})
	c.until("a tombstone", func() error {
		if p := c.opened(app); p == nil || !p.Tombstone {
			return fmt.Errorf("sealed %+v", p)
		}
		return nil
	})
}
