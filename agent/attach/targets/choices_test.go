package targets

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/pods/process"
	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestChoicesMatchThePodsThatAreChosen(t *testing.T) {
	front := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "front"}}
	paid := &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "paid"}}
	team := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "a"}
	cluster := v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication}
	wrong := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "?"}}}
	pods := []containers.Pod{{Namespace: "a", Labels: map[string]string{"app": "front"}}, {Namespace: "a"}, {
		Namespace: "b", Labels: map[string]string{"app": "front"},
	},
		{Namespace: "b"}, {Namespace: "unknown"}}
	labels := func(name string) (map[string]string, bool, bool) {
		return map[string]string{"tier": map[string]string{"b": "paid"}[name]}, name != "unknown", name != "kept"
	}
	for sentence, c := range map[string]struct {
		by     v1alpha1.Identity
		chosen *v1alpha1.Pods
		want   [5]bool
	}{
		"no pods":                          {team, nil, [5]bool{}},
		"all of a namespace":               {team, &v1alpha1.Pods{}, [5]bool{true, true}},
		"some of a namespace":              {team, &v1alpha1.Pods{Selector: front}, [5]bool{true}},
		"a namespace cannot choose others": {team, &v1alpha1.Pods{NamespaceSelector: paid}, [5]bool{true, true}},
		"all":                              {cluster, &v1alpha1.Pods{}, [5]bool{true, true, true, true, true}},
		"those with a label":               {cluster, &v1alpha1.Pods{Selector: front}, [5]bool{true, false, true}},
		"of namespaces, or not known":      {cluster, &v1alpha1.Pods{NamespaceSelector: paid}, [5]bool{false, false, true, true, true}},
		"both":                             {cluster, &v1alpha1.Pods{NamespaceSelector: paid, Selector: front}, [5]bool{false, false, true}},
		"what cannot be read":              {team, &v1alpha1.Pods{Selector: wrong}, [5]bool{true, true, true, true, true}},
	} {
		choices := NewChoices(labels)
		choices.Add(c.by, v1alpha1.Attachment{Pods: c.chosen})
		choices.Add(c.by, v1alpha1.Attachment{Pods: c.chosen})
		for i, pod := range pods {
			if got := choices.Match(pod); got != c.want[i] {
				t.Errorf("%s: pod %d matches: %v, want %v", sentence, i, got, c.want[i])
			}
		}
	}
	choices := NewChoices(nil)
	if choices.Add(cluster, v1alpha1.Attachment{Interfaces: &v1alpha1.Interfaces{}, Pods: &v1alpha1.Pods{}}); choices.Devices {
		t.Error("devices of pods count as those of the node")
	}
	if choices.Add(cluster, v1alpha1.Attachment{Interfaces: &v1alpha1.Interfaces{}}); !choices.Devices {
		t.Error("devices of the node do not count")
	}
}

// TestAPodIsAsItWasWhereNothingOfItChanged changes one thing each, as where a number is used again.
func TestAPodIsAsItWasWhereNothingOfItChanged(t *testing.T) {
	pod := containers.Pod{SandboxID: "s", NetnsID: 7, CgroupID: 8, Sandbox: process.Process{PID: 9}}
	one := containers.Container{ID: "c", Pod: pod, CgroupID: 10, Process: process.Process{PID: 11}}
	for sentence, c := range map[string]struct {
		change func(*containers.Container)
		want   bool
	}{
		"nothing":               {func(*containers.Container) {}, true},
		"its name":              {func(c *containers.Container) { c.Name = "x" }, true},
		"the sandbox":           {func(c *containers.Container) { c.Pod.SandboxID = "t" }, false},
		"the sandbox's task":    {func(c *containers.Container) { c.Pod.Sandbox.PID = 1 }, false},
		"the network":           {func(c *containers.Container) { c.Pod.NetnsID = 1 }, false},
		"the pod's cgroup":      {func(c *containers.Container) { c.Pod.CgroupID = 1 }, false},
		"the container":         {func(c *containers.Container) { c.ID = "d" }, false},
		"its task":              {func(c *containers.Container) { c.StartTime = 1 }, false},
		"the container's group": {func(c *containers.Container) { c.CgroupID = 1 }, false},
	} {
		now := one
		c.change(&now)
		known := Pods{Snapshot: containers.NewSnapshot([]containers.Container{now}), Before: containers.NewSnapshot([]containers.Container{one})}
		sandboxes, netns := known.unchanged()
		if sandboxes[now.Pod.SandboxID] != c.want || netns[now.Pod.NetnsID] != c.want {
			t.Errorf("%s changed: as it was %v, its network %v, want %v", sentence, sandboxes, netns, c.want)
		}
		known.Before = nil
		if sandboxes, netns := known.unchanged(); len(sandboxes)+len(netns) > 0 {
			t.Errorf("a full reconcile takes %v and %v as they were", sandboxes, netns)
		}
	}
}
