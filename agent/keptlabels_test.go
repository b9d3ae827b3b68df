package agent_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestOlderLabelsOfANamespaceEndNothing kills an agent between a change of labels, which put
// programs into pods of team-b, and their write. The next start has the labels from before, until
// the API server answers.
func TestOlderLabelsOfANamespaceEndNothing(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), world.NewRuntime(t)
	type labels struct {
		of      map[string]string
		current bool
	}
	var now atomic.Pointer[labels]
	start := func() *agent.Agent {
		return onTurns(w, r, func(o *agent.Options) {
			o.NamespaceLabels = func(name string) (map[string]string, bool, bool) {
				l := now.Load()
				return map[string]string{"firewall": l.of[name]}, true, l.current
			}
		})
	}
	on := v1alpha1.Pods{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"firewall": "on"}}}
	eth0 := v1alpha1.Attachment{Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}, Pods: &on}
	cgroups, devices, probes := world.OfTeam(w, "", "cgroup_skb", "cgroup_egress", inCgroups(on)), world.OfTeam(w, "", "xdp_count", "count_packets", eth0),
		world.OfTeam(w, "", "uprobe_count", "uprobe_count", world.InPods(on))
	uids := []string{cgroups.UID, devices.UID, probes.UID}
	cgroups.Application.Kind, devices.Application.Kind, probes.Application.Kind = v1alpha1.KindClusterBpfApplication, v1alpha1.KindClusterBpfApplication,
		v1alpha1.KindClusterBpfApplication
	a, b := r.Start("team-a", "a", "app", nil).Connected("cn-a"), r.Start("team-b", "b", "app", nil).Connected("cn-b")

	now.Store(&labels{map[string]string{"team-b": "on"}, true})
	first := start()
	w.Give(first, cgroups, devices, probes)
	rests(t, first)
	is := func(when string, of *agent.Agent, want []string, waits bool, inA, inB bool) {
		t.Helper()
		for _, uid := range uids {
			got, others := placesOf(of, uid)
			want := want
			if uid == probes.UID {
				// The pods share the file, and the probe that is there stays.
				want = want[len(want)-1:]
			}
			if !slices.EqualFunc(got, want, strings.Contains) {
				t.Errorf("%s: %s runs in %v, want %v", when, uid, got, want)
			}
			if waits != strings.Contains(others, "Waiting") {
				t.Errorf("%s: others are %q, want that they wait: %v", when, others, waits)
			}
		}
		for pod, want := range map[*world.Pod]bool{a: inA, b: inB} {
			before := world.Counted(w, probes.UID)
			pod.Runs("app")
			if got := world.Counted(w, probes.UID) > before; got != want {
				t.Errorf("%s: the guard lets calls of pod %s through: %v, want %v", when, pod.Pod.Name, got, want)
			}
		}
	}
	is("by the new labels", first, []string{"pod team-b/b"}, false, false, true)
	world.Must(t, first.Close())

	now.Store(&labels{map[string]string{"team-a": "on", "team-b": "off"}, false})
	second := start()
	rests(t, second)
	is("by older labels", second, []string{"pod team-a/a", "pod team-b/b"}, true, true, true)

	now.Store(&labels{map[string]string{"team-a": "on", "team-b": "off"}, true})
	second.Wake()
	rests(t, second)
	is("as the API server says", second, []string{"pod team-a/a"}, false, true, false)
}
