package policies_test

import (
	"testing"

	"github.com/skep-dev/skep/policies"
)

func TestBaselineAppliesWithoutAnyPolicy(t *testing.T) {
	set, err := policies.Compile(t.Context(), nil, policies.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := set.Decide(t.Context(), policies.Input{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Allowed() || d.Denied[0].Rule != "baseline/digest" {
		t.Errorf("an empty input is decided %+v", d)
	}
}
