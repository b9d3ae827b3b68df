package policies_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/policies"
)

// TestOnlyTheClustersBaselineGrants: a namespace has more programs and pages by the parameters of the object called baseline alone.
func TestOnlyTheClustersBaselineGrants(t *testing.T) {
	grants := parameter("sharedTargets", `{"team-a": {"programs": 8, "textPages": 70}, "team-*": {"textPages": 128}, "x": {"programs": 9}}`)
	with := func(p policies.Policy, change ...func(*policies.Policy)) policies.Policy {
		grants(&p)
		for _, c := range change {
			c(&p)
		}
		return p
	}
	other := func(p *policies.Policy) { p.Name = "more" }
	set := func(value string) []policies.Policy {
		return []policies.Policy{with(profile("baseline"), parameter("sharedTargets", value))}
	}
	lab := policy("lab", "deny contains \"x\" if false", replaces, namespaces("team-b"))
	for sentence, c := range map[string]struct {
		policies  []policies.Policy
		namespace string
		want      policies.SharedTargets
	}{
		"no policy":                        {nil, "team-a", policies.SharedTargets{}},
		"baseline without the parameter":   {[]policies.Policy{profile("baseline")}, "team-a", policies.SharedTargets{}},
		"the most of all globs that match": {[]policies.Policy{with(profile("baseline"))}, "team-a", policies.SharedTargets{Programs: 8, TextPages: 128}},
		"another namespace":                {[]policies.Policy{with(profile("baseline"))}, "team-b", policies.SharedTargets{TextPages: 128}},
		"a namespace that no glob matches": {[]policies.Policy{with(profile("baseline"))}, "other", policies.SharedTargets{}},
		"an application of the cluster":    {set(`{"*": {"programs": 8}}`), "", policies.SharedTargets{}},
		"what the object does not match":   {[]policies.Policy{with(profile("baseline"), namespaces("x"))}, "team-a", policies.SharedTargets{}},
		"in mode Audit":                    {[]policies.Policy{with(profile("baseline"), audit)}, "team-a", policies.SharedTargets{}},
		"where baseline is replaced":       {[]policies.Policy{with(profile("baseline")), lab}, "team-b", policies.SharedTargets{}},
		"where it is replaced for others":  {[]policies.Policy{with(profile("baseline")), lab}, "team-a", policies.SharedTargets{Programs: 8, TextPages: 128}},
		"a policy of the namespace":        {[]policies.Policy{with(profile("baseline"), in("team-a"))}, "team-a", policies.SharedTargets{}},
		"another policy with the profile":  {[]policies.Policy{with(profile("baseline"), other)}, "team-a", policies.SharedTargets{}},
		"the profile restricted":           {[]policies.Policy{with(profile("restricted"))}, "team-a", policies.SharedTargets{}},
		"a parameter of another type":      {set(`{"team-a": 8}`), "team-a", policies.SharedTargets{}},
		"a glob that is none":              {set(`{"[": {"programs": 8}}`), "team-a", policies.SharedTargets{}},
	} {
		t.Run(sentence, func(t *testing.T) {
			got := compile(t, c.policies...).Granted(c.namespace)
			if got != c.want {
				t.Errorf("%s is granted %+v, want %+v", c.namespace, got, c.want)
			}
		})
	}
	// Its author learns of a grant that is none.
	for _, p := range []policies.Policy{with(profile("restricted")), with(profile("baseline"), in("team-a"))} {
		if all := strings.Join(p.Cautions(), "; "); !strings.Contains(all, "sharedTargets") {
			t.Errorf("the author of %s is warned of %q", p, all)
		}
	}
	if all := with(profile("baseline")).Cautions(); len(all) > 0 {
		t.Errorf("the author of baseline is warned of %q", all)
	}
}
