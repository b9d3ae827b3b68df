package integration

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// connectsOfPods is an application of a namespace, as a user writes it.
const connectsOfPods = `
apiVersion: skep.dev/v1alpha1
kind: BpfApplication
metadata: {name: connects, namespace: team-a}
spec:
  bytecode: {image: %s}
  programs: [{name: cgroup_connect4, attach: [{hook: cgroup/connect4, %s}]}]
`

// TestAnApplicationInPodsSaysWhatTheNodeLacks: the API server takes what a namespace may have and
// no more, and the agent of a node without a container runtime says what to set. What runs in pods
// is a test of the whole cluster.
func TestAnApplicationInPodsSaysWhatTheNodeLacks(t *testing.T) {
	need.Kernel(t)
	c := newCluster(t)
	nodes, _ := c.begin(1)
	c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}})
	image, _ := c.Push("connects:v1", programs.Object("cgroup_connect4"), "team-a")
	written := func(where string) *v1alpha1.BpfApplication {
		app := new(v1alpha1.BpfApplication)
		if err := yaml.UnmarshalStrict(fmt.Appendf(nil, connectsOfPods, image, where), app); err != nil {
			t.Fatal(err)
		}
		return app
	}
	for where, want := range map[string]string{
		"cgroup: /":                     "cgroup/connect4 reaches beyond a namespace without pods: give pods, such as {} for all Pods of the namespace",
		"pods: {namespaceSelector: {}}": "a BpfApplication reaches the Pods of its own namespace alone",
	} {
		if err := c.Create(t.Context(), written(where)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", where, err, want)
		}
	}
	app := written("pods: {}")
	c.create(app)
	ready := c.condition(app, v1alpha1.ConditionReady, metav1.ConditionFalse, "NodesFailed")
	if want := "this agent does not know the node's pods: set agent.pods.enabled of the chart"; !strings.Contains(ready.Message, want) {
		t.Errorf("it says %q, want %q", ready.Message, want)
	}
	if err := c.Delete(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	nodes[0].clean()
}
