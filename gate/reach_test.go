package gate_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestPoliciesCountTheMapsThatAreLoaded evaluates programs of an object with a map of 38 MiB, whose labels list
// that map, too.
func TestPoliciesCountTheMapsThatAreLoaded(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("tcx_reach")
	j := w.evaluator()
	j.SetPolicies(w.policy(rego(`deny contains sprintf("%d MiB", [floor(input.bytecode.memoryBytes / 1048576)]) if input.bytecode.memoryBytes > 1048576

deny contains mismatch.message if some mismatch in input.image.mismatches

deny contains "large" if {
	some map in input.bytecode.maps
	map.name == "large"
}
`)))
	for sentence, c := range map[string]struct {
		program, hook string
		maps          map[string]v1alpha1.Map
		want          string
	}{
		"a program that needs a small map": {program: "plain", hook: "tcx/ingress"},
		"the one that needs the large map": {program: "unlisted", hook: "xdp", want: "37 MiB; large"},
		"a definition that names the map":  {program: "plain", hook: "tcx/ingress", maps: map[string]v1alpha1.Map{"large": {}}, want: "37 MiB; large"},
	} {
		t.Run(sentence, func(t *testing.T) {
			at := onEth0()
			at.Hook = c.hook
			v := mustEvaluate(t, j, with(app(ref, c.program, at), func(s *v1alpha1.BpfApplicationSpec) { s.Maps = c.maps }))
			var says []string
			for _, r := range v.Decision().Denied {
				says = append(says, r.Message)
			}
			if diff := cmp.Diff(c.want, strings.Join(says, "; ")); diff != "" {
				t.Errorf("denied for (-want +got):\n%s", diff)
			}
			if v.Image().Digest == "" || len(v.Facts().Programs) < 5 {
				t.Error("the facts have no programs")
			}
		})
	}
}
