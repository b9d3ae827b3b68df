package agent_test

import (
	"testing"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestPodsComeAndGoForWhatRunsWhileANewerVersionIsLoaded has the load of the newer version of an
// application take long, in a cluster, where the newer one names no other, and on one host.
func TestPodsComeAndGoForWhatRunsWhileANewerVersionIsLoaded(t *testing.T) {
	need.Kernel(t)
	amd64(t)
	for _, node := range []string{"", "n"} {
		for hook, c := range map[string]struct {
			object, program string
			at              v1alpha1.Attachment
			links           []int
		}{
			"uprobe":            {"uprobe_count", "uprobe_count", inPods(v1alpha1.Pods{}), []int{1, 1, 1}},
			"cgroup_skb/egress": {"cgroup_skb", "cgroup_egress", inCgroups(v1alpha1.Pods{}), []int{1, 2, 1}},
		} {
			t.Run(hook+" on node "+node, func(t *testing.T) {
				w, r := newWorld(t), newRuntime(t)
				o := w.options()
				o.Containers, o.Node = r.source, node
				a := w.startWith(o)
				first := r.start("team-a", "web", "app", nil)
				p := w.ofTeam("team-a", c.object, c.program, c.at)
				must(t, w.accept(a, p))
				w.hasLinks(a, p.UID, c.links[0])
				let := a.HoldLoads(p.UID)
				t.Cleanup(let)
				newer := w.version("2", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "xdp_exception"})
				newer.UID, newer.Application, newer.Serial = p.UID, p.Application, p.Serial+1
				must(t, a.Accept(w.seal(newer)))
				until(t, "the newer version to be loaded", time.Minute, func() bool { return w.loads(a, p.Application.Name) })

				second := r.start("team-a", "web-2", "app", nil)
				covers := func() bool { return w.linkPins(p.UID) == c.links[1] }
				if hook == "uprobe" {
					covers = func() bool { before := w.counted(p.UID); second.runs("app"); return w.counted(p.UID) == before+worked }
				}
				until(t, "the version that runs to cover the new pod", 10*time.Second, covers)
				first.ends()
				until(t, "it to leave the pod that ended", 10*time.Second, func() bool {
					if hook == "uprobe" {
						before := w.counted(p.UID)
						first.runs("app")
						return w.counted(p.UID) == before
					}
					return w.linkPins(p.UID) == c.links[2]
				})
				let()
				must(t, w.accept(a))
				if s := statusOf(a, p.Application.Name); s.Error != "" || len(s.Programs) != len(newer.Programs) {
					t.Errorf("the newer version: %+v", s)
				}
			})
		}
	}
}
