package act

import (
	"cmp"
	"slices"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/plan"
)

func TestOwnersApplicationsAndChainsTakeTurns(t *testing.T) {
	var actions []plan.Action
	for _, uid := range []string{"a", "a", "a", "b", "c"} {
		actions = append(actions, plan.Action{Verb: plan.Drop, UID: uid, Revision: string(rune('0' + len(actions)))})
	}
	actions = append(actions, plan.Action{Verb: plan.SetChain, Interface: "eth0", Device: plan.Device{Index: 1}}, plan.Action{
		Verb: plan.SetChain, Interface: "eth1", Device: plan.Device{Index: 2},
	})
	for sentence, c := range map[string]struct {
		owners map[string]string
		want   []string
	}{
		"each its own": {nil, []string{"drop a@0", "drop b@3", "drop c@4", "chain eth0 []", "chain eth1 []", "drop a@1", "drop a@2"}},
		"a and b of one namespace": {map[string]string{"a": "shop", "b": "shop"}, []string{
			"drop a@0", "drop c@4", "chain eth0 []", "chain eth1 []", "drop b@3", "drop a@1", "drop a@2",
		}},
	} {
		var got []string
		for _, a := range inTurn(actions, func(a plan.Action) string { return cmp.Or(c.owners[a.UID], lineOf(a)) }) {
			got = append(got, a.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: inTurn = %q, want %q", sentence, got, c.want)
		}
	}
}
