package agent_test

import (
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// keeper is a source that hears which keys of labels selectors name.
type keeper struct {
	containers.Source
	keys *atomic.Pointer[map[string]bool]
}

// Keep implements containers.Keeper.
func (k keeper) Keep(keys map[string]bool) { k.keys.Store(&keys) }

// TestTheSourceIsToldWhichLabelsSelectorsName, those of any application and any kind of selector.
func TestTheSourceIsToldWhichLabelsSelectorsName(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), world.NewRuntime(t)
	var keys atomic.Pointer[map[string]bool]
	a := onTurns(w, r, func(o *agent.Options) {
		o.Containers = func(wake func(...containers.Pod)) (containers.Source, error) {
			s, err := r.Source(wake)
			return keeper{s, &keys}, err
		}
	})
	chosen := func(namespace, key string, operator metav1.LabelSelectorOperator) v1alpha1.Pods {
		return v1alpha1.Pods{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{key: "on"},
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key + "-" + namespace, Operator: operator}}}}
	}
	w.Give(a, world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(chosen("team-a", "firewall", metav1.LabelSelectorOpExists))),
		world.OfTeam(w, "team-b", "uprobe_count", "uprobe_count", world.InPods(chosen("team-b", "trace", metav1.LabelSelectorOpDoesNotExist))))
	rests(t, a)
	want := []string{"firewall", "firewall-team-a", "trace", "trace-team-b"}
	if got := slices.Sorted(maps.Keys(*keys.Load())); !slices.Equal(got, want) {
		t.Errorf("the source keeps %v, want %v", got, want)
	}
}
