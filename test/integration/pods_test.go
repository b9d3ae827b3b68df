package integration

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/test/programs"
)

// TestPodsOfOthersCostNothing has twenty Pods that are none of Skep's become
// Running beside a hundred applications. What an application applied after them
// costs shows that they were seen by then, and cost nothing.
func TestPodsOfOthersCostNothing(t *testing.T) {
	const applications, pods = 100, 20
	c := newCluster(t)
	var count traffic
	c.control(func(o *controller.Options) {
		o.Config = rest.CopyConfig(o.Config)
		o.Config.Wrap(count.wrap)
	})
	c.create(c.Signer("team-a"))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-0"}}
	c.create(node)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := c.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	agents := c.simulates(1)
	ref, _ := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	ready := func(name string) {
		app := application(name, ref)
		c.create(app)
		c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	}
	for i := range applications {
		c.create(application(fmt.Sprintf("app-%d", i), ref))
	}
	ready("last")
	for i := range applications {
		c.condition(application(fmt.Sprintf("app-%d", i), ref), v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	}
	spent := func(do func()) (controller, node int64) {
		before, its := count.spent(), agents.spent()
		do()
		return count.spent().since(before).Requests, agents.spent().since(its).Requests
	}
	alone, its := spent(func() { ready("before") })
	with, theirs := spent(func() {
		for i := range pods {
			c.pod("node-0", map[string]string{"app": fmt.Sprint(i)})
		}
		ready("after")
	})
	if with > alone+5 || theirs > its+2 {
		t.Errorf("an application cost the controller %d requests and the node %d; with %d Pods beside it %d and %d", alone, its, pods, with, theirs)
	}
}
