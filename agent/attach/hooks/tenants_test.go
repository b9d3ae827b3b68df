package hooks_test

import (
	_ "embed"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// tenantsObject is testdata/tenants.c.
//
//go:embed testdata/tenants.o
var tenantsObject []byte

// TestTenantsSeeTheirOwnTasks has two teams with a pod of one name and image each, and the same
// program for a hook of tasks. What the one does a million times, the other's counts never.
func TestTenantsSeeTheirOwnTasks(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	lots := 1_000_000
	if testing.Short() {
		// An emulated machine is slower by a hundred times.
		lots = 50_000
	}
	functions := func(name string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Functions: &v1alpha1.Functions{Names: []string{name}}}
	}
	for hook, at := range map[string]v1alpha1.Attachment{
		"kprobe":   functions("security_task_getpgid"),
		"ksyscall": functions("getpgid"),
		"fentry":   functions("security_task_getpgid"),
		"lsm":      functions("task_getpgid"),
		"usdt":     {Binary: &v1alpha1.UserBinary{Path: "/busy", USDT: &v1alpha1.USDT{Provider: "skep", Name: "work"}}},
	} {
		t.Run(hook, func(t *testing.T) {
			world.NeedHook(t, hook)
			w, r := world.New(t), world.NewRuntime(t)
			at.Hook, at.Pods = hook, &v1alpha1.Pods{}
			a, _ := world.StartOn(w, r)
			pods, uids := map[string]*world.Pod{}, map[string]string{}
			for _, team := range []string{"team-a", "team-b"} {
				pods[team] = r.Start(team, "web", "app", nil)
				p := world.OfTeam(w, team, "uprobe_count", "on_"+hook, at)
				p.ObjectDigest, uids[team] = w.Object(tenantsObject), p.UID
				world.Must(t, w.Accept(a, p))
				world.HasLinks(w, a, p.UID, 1)
			}
			cause := func(p *world.Pod, times int) {
				if hook != "usdt" {
					p.Task.Does("getpgid", times)
					return
				}
				for range times / (10 * world.Worked) {
					p.Runs("busy")
				}
			}
			for _, c := range []struct {
				team     string
				times    int
				ofA, ofB uint64
			}{
				{"team-b", lots, 0, uint64(lots)},
				{"team-a", lots / 5, uint64(lots / 5), uint64(lots)},
			} {
				cause(pods[c.team], c.times)
				if ofA, ofB := world.Counted(w, uids["team-a"]), world.Counted(w, uids["team-b"]); ofA != c.ofA || ofB != c.ofB {
					t.Errorf("after %d events of %s: team-a counted %d, want %d; team-b %d, want %d", c.times, c.team, ofA, c.ofA, ofB, c.ofB)
				}
			}
		})
	}
}
