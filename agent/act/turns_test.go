package act

import (
	"slices"
	"testing"

	"github.com/skep-dev/skep/agent/plan"
)

func TestApplicationsAndChainsTakeTurns(t *testing.T) {
	var actions []plan.Action
	for _, uid := range []string{"a", "a", "a", "b"} {
		actions = append(actions, plan.Action{Verb: plan.Drop, UID: uid, Revision: string(rune('0' + len(actions)))})
	}
	actions = append(actions, plan.Action{Verb: plan.SetChain, Interface: "eth0", Device: plan.Device{Index: 1}}, plan.Action{Verb: plan.SetChain, Interface: "eth1", Device: plan.Device{Index: 2}})
	var got []string
	for _, a := range inTurn(actions) {
		got = append(got, a.String())
	}
	if want := []string{"drop a@0", "drop b@3", "chain eth0 []", "chain eth1 []", "drop a@1", "drop a@2"}; !slices.Equal(got, want) {
		t.Errorf("inTurn = %q, want %q", got, want)
	}
}
