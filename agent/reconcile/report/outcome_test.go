package report

import (
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

func TestWhatTheNodeDoesNotCountIsToldOnce(t *testing.T) {
	on := func(name, part string, cpu int) error {
		h, _ := hook.Lookup(name)
		return fmt.Errorf("attach f to %s (CPU %d): %w", name, cpu, &attach.LackingError{Hook: h, Part: part})
	}
	got := describeAll([]error{on("perf_event", "counts no a", 0), nil, on("perf_event", "counts no a", 1), on("perf_event", "counts no b", 0),
		on("kprobe", "has no c", 0), on("kprobe", "has no c", 1), errors.New("d"), errors.New("d")})
	const away = ", or keep the application away with nodeSelector\n"
	want := "attach f to perf_event (CPU 0): this node's kernel counts no a" + away + "attach f to perf_event (CPU 0): this node's kernel counts no b" + away +
		"attach f to kprobe (CPU 0): this node's kernel has no c" + away + "attach f to kprobe (CPU 1): this node's kernel has no c" + away + "d\nd"
	if got != want {
		t.Errorf("says\n%s\nwant\n%s", got, want)
	}
}

func TestAChoiceOfNoPodNamesItsLabels(t *testing.T) {
	labels := &metav1.LabelSelector{MatchLabels: map[string]string{"systemd.unit": "a.service"}}
	for want, pods := range map[string]*v1alpha1.Pods{
		"no pod of this node is chosen by pods":                          {Selector: &metav1.LabelSelector{}},
		"no pod of this node is chosen by pods (systemd.unit=a.service)": {Selector: labels},
		"no pod of this node is chosen by pods (systemd.unit=a.service) with such a container; a unit or cgroup of a host has one, " +
			"of its own name": {Selector: labels, Containers: []string{"x"}},
	} {
		if got := InNoPods("f", v1alpha1.Attachment{Hook: "uprobe", Pods: pods}).Status.Error; got != want {
			t.Errorf("says %q, want %q", got, want)
		}
	}
}
