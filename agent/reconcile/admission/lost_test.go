package admission

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/history"
)

func TestAPlaceIsLostToOthersAlone(t *testing.T) {
	for sentence, c := range map[string]struct {
		err  error
		lost bool
	}{
		"the limits are held":                       {&plan.OverLimitError{Limit: "maps"}, true},
		"the verifier walks too much for all":       {fmt.Errorf("load: %w", &chain.Rejection{Limit: chain.LimitInstructions}), true},
		"the stack does not suffice":                {&chain.Rejection{Limit: chain.LimitStack}, true},
		"the verifier refuses it for another cause": {&chain.Rejection{Limit: chain.LimitVerifier}, false},
		"the kernel has no memory":                  {fmt.Errorf("load chain: %w", unix.ENOMEM), false},
		"a right is missing":                        {fmt.Errorf("load chain: %w", unix.EPERM), false},
		"something else":                            {errors.New("load chain: no"), false},
	} {
		t.Run(sentence, func(t *testing.T) {
			adm := New(Options{History: &history.History{}}).Begin(decide.New(decide.Options{Look: (&live.Set{}).Look()}), nil, nil)
			place := plan.Place{Hook: plan.XDP, Device: plan.Device{Index: 2}, Interface: "eth0"}
			adm.RejectAt(place, Claim{Claim: plan.Claim{UID: "u", Seniority: plan.Remembered}}, c.err)
			if adm.lost[history.At{UID: "u", Hook: plan.XDP, Interface: "eth0"}] != c.lost {
				t.Errorf("lost is %v", adm.lost)
			}
		})
	}
}
