package hooks_test

import (
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestATeamTakesNoCallbackFromTheCluster has a program of the cluster ask for the changes of a connection's state, and a team's take that back at the
// next call about the connection.
func TestATeamTakesNoCallbackFromTheCluster(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), world.NewRuntime(t)
	pod := onLoopback(t, r.Start("team-a", "web", "app", nil))
	a, _ := world.StartOn(w, r)
	at := v1alpha1.Attachment{Hook: "sockops", Pods: &v1alpha1.Pods{}}
	cluster := world.OfTeam(w, "", "sockops_states", "wants_states", at)
	cluster.Application = v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "states"}
	world.Must(t, w.Accept(a, cluster))
	world.HasLinks(w, a, cluster.UID, 1)
	states := func() uint64 {
		before := world.Counted(w, cluster.UID)
		pod.Task.Can("connect:tcp")
		return world.Counted(w, cluster.UID) - before
	}
	alone := states()
	team := world.OfTeam(w, "team-a", "sockops_states", "clears_callbacks", at)
	world.Must(t, w.Accept(a, team))
	world.HasLinks(w, a, team.UID, 1)
	if beside := states(); alone == 0 || beside != alone {
		t.Errorf("the cluster sees %d changes of a connection, and beside a team's program %d", alone, beside)
	}
}
