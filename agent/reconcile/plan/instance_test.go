package plan_test

import (
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestInstancesOfScopesAreLoadedApart(t *testing.T) {
	for want, got := range map[string]string{
		"f":                         plan.InScope("f", ""),
		"f@scope/x":                 plan.InScope("f", "x"),
		"f@fentry/vfs_read@scope/y": plan.InScope(plan.Instance("f", "fentry", "vfs_read"), "y"),
	} {
		if got != want {
			t.Errorf("the instance is %s, want %s", got, want)
		}
	}
	// What an agent before left unbounded is loaded once more.
	team := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team"}
	for hook, want := range map[string]string{"sockops": "f@bounded", "tcx/egress": "f@bounded", "xdp": "f"} {
		if got := plan.InstanceOf(team, "f", v1alpha1.Attachment{Hook: hook}, ""); got != want {
			t.Errorf("on %s the instance is %s, want %s", hook, got, want)
		}
	}
	at := v1alpha1.Attachment{Hook: "tp_btf", Tracepoint: "sys_enter"}
	loads := plan.Loads(v1alpha1.Identity{}, "f", at)
	if len(loads) != 1 || loads[0].Instance != plan.InstanceOf(v1alpha1.Identity{}, "f", at, "sys_enter") || loads[0].Scope != "" ||
		plan.Scope(v1alpha1.Identity{}, at) != "" {
		t.Errorf("loads are %+v", loads)
	}
}
