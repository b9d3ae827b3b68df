package policies_test

import (
	"regexp"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/policies"
)

// TestTheGuidesPolicyForbidsAPosition among the programs of others.
func TestTheGuidesPolicyForbidsAPosition(t *testing.T) {
	m := regexp.MustCompile("(?s)<!-- policy: position -->\n```rego\n(.*?)```").FindStringSubmatch(guide(t))
	if m == nil {
		t.Fatal("the guide shows no such policy")
	}
	set := compile(t, policies.Policy{Name: "place", Spec: v1alpha1.BpfPolicySpec{Rego: m[1]}})
	for position, want := range map[v1alpha1.Position]string{"": "", v1alpha1.PositionFirst: "place/position"} {
		d := decide(t, set, input(func(in *policies.Input) {
			in.Application.Spec.Programs[0].Attach = []v1alpha1.Attachment{{Hook: "tcx/ingress", Interfaces: &v1alpha1.Interfaces{Primary: true}, Position: position}}
		}))
		got := ""
		for _, r := range d.Denied {
			if r.Rule == "place/position" {
				got = r.Rule
				if r.Path != "spec.programs[0].attach[0].position" {
					t.Errorf("its path is %q", r.Path)
				}
			}
		}
		if got != want {
			t.Errorf("position %q: %+v, want %q", position, d.Denied, want)
		}
	}
}
