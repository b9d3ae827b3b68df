package integration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestADeadAgentHoldsNothingUpAndItsNodeCleansUpWhenItReturns kills one of two
// agents. What is applied then is Ready without it, what is deleted is gone at
// once, and what runs there runs until the agent is back.
func TestADeadAgentHoldsNothingUpAndItsNodeCleansUpWhenItReturns(t *testing.T) {
	need.Kernel(t)
	c := newCluster(t)
	nodes, _ := c.begin(2, func(o *controller.Options) {
		o.Agents.Selector, o.Agents.Grace = labels.SelectorFromSet(agentLabels()), time.Millisecond
	})
	lives, dies := nodes[0], nodes[1]
	c.pod(lives.name, agentLabels())
	pod := c.pod(dies.name, agentLabels())
	ref, _ := c.Push("count:v1", programs.Object("xdp_count"), "team-a")
	doomed := fleet(ref)
	doomed.Name = "doomed"
	c.create(doomed)
	c.summary(doomed, "2/2")
	dies.counts()

	dies.kill()
	c.says(pod, corev1.ConditionFalse)
	c.summary(doomed, "1/2")
	after := fleet(ref)
	// Whichever node its rollout begins with.
	after.Name = "after"
	c.create(after)
	ready := c.condition(after, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	if n := after.Status.Nodes; n == nil || n.Summary != "1/2" || n.Unreachable != 1 || n.Pending != 0 {
		t.Errorf("%s: nodes %+v", ready.Message, n)
	}
	if err := c.Delete(t.Context(), doomed); err != nil {
		t.Fatal(err)
	}
	c.until("the object to go", func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(doomed), doomed.DeepCopy()); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	c.unloaded(doomed, "deleted")
	lives.forgets(doomed)
	if len(dies.revisions(doomed)) != 1 || len(dies.revisions(after)) != 0 {
		t.Errorf("without its agent the node holds %v of what was deleted, %v of what was applied", dies.revisions(doomed), dies.revisions(after))
	}
	dies.counts()

	dies.start()
	c.says(pod, corev1.ConditionTrue)
	dies.forgets(doomed)
	c.summary(after, "2/2")
	dies.counts()
	if err := c.Delete(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	for _, m := range nodes {
		m.clean()
	}
}

// forgets waits until a node holds nothing of an application.
func (m *machine) forgets(app client.Object) {
	m.c.t.Helper()
	m.c.until(m.name+" to forget "+app.GetName(), func() error {
		var left []string
		m.pinned(func(name string) {
			if strings.Contains(name, string(app.GetUID())) {
				left = append(left, name)
			}
		})
		if len(left) > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
}

// clean waits until nothing is pinned on a node, and nothing is attached to its
// interface.
func (m *machine) clean() {
	m.c.t.Helper()
	m.c.until(m.name+" to be clean", func() error {
		if n := m.pins(); n > 0 {
			return fmt.Errorf("%d pins", n)
		}
		out, err := m.enter("ip", "link", "show", "eth0").CombinedOutput()
		if err == nil && slices.Contains(strings.Fields(string(out)), "xdp") {
			err = errors.New("an XDP program is attached")
		}
		return err
	})
}
