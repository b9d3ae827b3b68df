package plan_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/plan"
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

// TestWhoChoseTheModeIsNamedToWhoMaySeeIt: to its own namespace, and to admins.
func TestWhoChoseTheModeIsNamedToWhoMaySeeIt(t *testing.T) {
	app := func(namespace, name string, mode v1alpha1.XDPMode) plan.Claim {
		return plan.Claim{UID: name, Identity: v1alpha1.Identity{Namespace: namespace, Name: name}, Seniority: plan.Arriving, Modes: []v1alpha1.XDPMode{mode}}
	}
	for sentence, c := range map[string]struct{ asks, has, want string }{
		"both are of one namespace":              {"a", "a", "application a/first, which"},
		"the other is of another namespace":      {"a", "b", "an application of another namespace, which"},
		"the other is of the cluster":            {"a", "", "a ClusterBpfApplication, which"},
		"the cluster's is told of a namespace's": {"", "b", "application b/first, which"},
		"both are of the cluster":                {"", "", "application first, which"},
	} {
		first, second := app(c.has, "first", v1alpha1.XDPNative), app(c.asks, "second", v1alpha1.XDPGeneric)
		second.Created = 1
		err := plan.Admit(plan.Place{Hook: plan.XDP, Interface: "eth0"}, []plan.Claim{first, second}, plan.Limits{})["second"]
		if err == nil || !strings.Contains(err.Error(), "it asks for Generic, and "+c.want+" has precedence on the interface, for Native") {
			t.Errorf("%s: %v, want %q", sentence, err, c.want)
		}
	}
}
