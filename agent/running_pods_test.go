package agent_test

import (
	"testing"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestPodsComeAndGoForWhatRunsWhileANewerVersionIsLoaded has the load of the newer version of an
// application take long, in a cluster, where the newer one names no other, and on one host.
func TestPodsComeAndGoForWhatRunsWhileANewerVersionIsLoaded(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	for _, node := range []string{"", "n"} {
		for hook, c := range map[string]struct {
			object, program string
			at              v1alpha1.Attachment
			links           []int
		}{
			"uprobe":            {"uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}), []int{1, 1, 1}},
			"cgroup_skb/egress": {"cgroup_skb", "cgroup_egress", inCgroups(v1alpha1.Pods{}), []int{1, 2, 1}},
		} {
			t.Run(hook+" on node "+node, func(t *testing.T) {
				w, r := world.New(t), world.NewRuntime(t)
				o := w.Options()
				o.Containers, o.Node = r.Source, node
				a := w.StartWith(o)
				first := r.Start("team-a", "web", "app", nil)
				p := world.OfTeam(w, "team-a", c.object, c.program, c.at)
				world.Must(t, w.Accept(a, p))
				world.HasLinks(w, a, p.UID, c.links[0])
				let := a.HoldLoads(p.UID)
				t.Cleanup(let)
				newer := world.Version(w, "2", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "xdp_exception"})
				newer.UID, newer.Application, newer.Serial = p.UID, p.Application, p.Serial+1
				world.Must(t, a.Accept(w.Seal(newer)))
				world.Until(t, "the newer version to be loaded", time.Minute, func() bool { return loads(w, a, p.Application.Name) })

				second := r.Start("team-a", "web-2", "app", nil)
				covers := func() bool { return world.LinkPins(w, p.UID) == c.links[1] }
				if hook == "uprobe" {
					covers = func() bool {
						before := world.Counted(w, p.UID)
						second.Runs("app")
						return world.Counted(w, p.UID) == before+world.Worked
					}
				}
				world.Until(t, "the version that runs to cover the new pod", 10*time.Second, covers)
				first.Ends()
				world.Until(t, "it to leave the pod that ended", 10*time.Second, func() bool {
					if hook == "uprobe" {
						before := world.Counted(w, p.UID)
						first.Runs("app")
						return world.Counted(w, p.UID) == before
					}
					return world.LinkPins(w, p.UID) == c.links[2]
				})
				let()
				world.Must(t, w.Accept(a))
				if s := world.StatusOf(a, p.Application.Name); s.Error != "" || len(s.Programs) != len(newer.Programs) {
					t.Errorf("the newer version: %+v", s)
				}
			})
		}
	}
}
