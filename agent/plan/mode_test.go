package plan_test

import (
	"testing"

	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestTheModeOfAnInterfaceIsThatOfWhoHasPrecedence: each case lists claims by precedence, with the modes
// that their programs ask for, and who is rejected.
func TestTheModeOfAnInterfaceIsThatOfWhoHasPrecedence(t *testing.T) {
	const native, generic = v1alpha1.XDPNative, v1alpha1.XDPGeneric
	type modes = []v1alpha1.XDPMode
	for sentence, c := range map[string]struct {
		claims   []modes
		running  bool
		noDriver string
		rejected []bool
	}{
		"all leave it open":                {claims: []modes{nil, nil}, rejected: []bool{false, false}},
		"one asks":                         {claims: []modes{nil, {generic}}, rejected: []bool{false, false}},
		"two ask for the same":             {claims: []modes{{native}, {native}}, rejected: []bool{false, false}},
		"two ask for different ones":       {claims: []modes{{native}, nil, {generic}}, rejected: []bool{false, false, true}},
		"the third asks as the first does": {claims: []modes{{generic}, {native}, {generic}}, rejected: []bool{false, true, false}},
		"one asks for both":                {claims: []modes{{native, generic}, {generic}}, rejected: []bool{true, false}},
		"one needs a driver":               {claims: []modes{{native}, {generic}}, noDriver: "it takes none", rejected: []bool{true, false}},
		"what runs is not rejected":        {claims: []modes{{native}}, running: true, noDriver: "it takes none", rejected: []bool{false}},
	} {
		t.Run(sentence, func(t *testing.T) {
			var claims []plan.Claim
			for i, m := range c.claims {
				one := plan.Claim{UID: string(rune('a' + i)), Seniority: plan.Arriving, Created: int64(i), Modes: m}
				if c.running {
					one.Seniority = plan.Running
				}
				claims = append(claims, one)
			}
			got := plan.Admit(plan.Place{Hook: plan.XDP, Interface: "eth0"}, claims, plan.Limits{NoDriver: c.noDriver})
			for i, rejected := range c.rejected {
				if err := got[claims[i].UID]; (err != nil) != rejected {
					t.Errorf("claim %d: %v", i, err)
				}
			}
		})
	}
	if got := plan.ModeOf([]plan.Member{{}, {Mode: generic}, {}}); got != generic {
		t.Errorf("ModeOf = %q", got)
	}
}
