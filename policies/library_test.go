package policies

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestLibrary runs the Rego tests of the shipped profiles, and holds that each
// rule has one.
func TestLibrary(t *testing.T) {
	tests := map[string]map[string]string{}
	var profiles []Policy
	for _, profile := range Profiles() {
		tests[profile] = map[string]string{}
		for _, file := range []string{"library/fixture_test.rego", path.Join("library", profile, profile+testSuffix)} {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tests[profile][file] = string(body)
		}
		profiles = append(profiles, Policy{Name: profile, Spec: v1alpha1.BpfPolicySpec{Profile: profile}})
	}
	report, err := testAll(t.Context(), profiles, tests)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		if r.Outcome != Passed || r.Output != "" {
			t.Errorf("%s:%d: %s %s %s %s", r.File, r.Line, r.Name, r.Outcome, r.Message, r.Output)
		}
	}
	if len(report.Results) < 40 || len(report.Untested) != 0 {
		t.Errorf("%d tests ran, untested: %v", len(report.Results), report.Untested)
	}
}

var _ = slices.Contains[[]string]
var _ = strings.Cut
