package gate_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
)

// TestATeamIsWarnedOfAnswersThatItDoesNotGet where the bytecode returns one, and denied none. The cluster's programs get all.
func TestATeamIsWarnedOfAnswersThatItDoesNotGet(t *testing.T) {
	w := newWorld(t)
	const (
		pass = " can return 0 (TCX_PASS, TC_ACT_OK), which does not end the hook in a BpfApplication: the next program runs " +
			"(return TCX_NEXT (-1) if that is meant, or use a ClusterBpfApplication)"
		drop = ", by which a BpfApplication drops the packet (return TCX_DROP (2) if that is meant, else TCX_NEXT (-1); " +
			"to send packets elsewhere, use hook xdp or a ClusterBpfApplication)"
		at = "inspect/answer at spec.programs[0]: program "
	)
	for object, programs := range map[string]map[string]string{
		"tcx_answers": {
			"passes":     at + "passes" + pass,
			"redirects":  at + "redirects can return 7 (TCX_REDIRECT, TC_ACT_REDIRECT)" + drop,
			"consumes":   at + "consumes can return 4 (TC_ACT_STOLEN) or 8 (TC_ACT_TRAP)" + drop,
			"of_no_type": at + "of_no_type" + pass,
			"drops":      "",
		},
		// They return what a variable says.
		"tcx_verdict": {"by_itself": "", "of_no_type": ""},
	} {
		image, evaluator := w.signed(object), w.evaluator()
		for program, want := range programs {
			wide := app(image, program, v1alpha1.Attachment{Hook: "tcx/ingress", Pods: &v1alpha1.Pods{}})
			for _, a := range []v1alpha1.Application{namespaced(wide), wide} {
				v := mustEvaluate(t, evaluator, a)
				if !v.Allowed() {
					t.Fatalf("%s of %s is denied: %v", program, a.Identity(), v.Decision().Denied)
				}
				var said string
				for _, r := range v.Decision().Warnings {
					said += gate.Sentence(r)
				}
				if a.Identity().Kind == v1alpha1.KindClusterBpfApplication {
					want = ""
				}
				if diff := cmp.Diff(want, said); diff != "" {
					t.Errorf("%s of %s (-want +got):\n%s", program, a.Identity(), diff)
				}
			}
		}
	}
}
