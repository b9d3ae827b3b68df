package policies_test

import (
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/harness/golden"
)

// TestCases runs testdata/cases: each holds an input, a folder of policies, and
// the decision it is to come to, all as YAML.
func TestCases(t *testing.T) {
	golden.Cases(t, "testdata/cases/*.txtar", func(t *testing.T, a *txtar.Archive) []txtar.File {
		return []txtar.File{golden.Part("decision.yaml", decideCase(t, a))}
	})
}

// decideCase is the decision on a case's input, as YAML, after the errors that
// its policies give.
func decideCase(t *testing.T, archive *txtar.Archive) string {
	t.Helper()
	fsys, err := txtar.FS(archive)
	if err != nil {
		t.Fatal(err)
	}
	body, err := fs.ReadFile(fsys, "input.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var in policies.Input
	if err := yaml.UnmarshalStrict(body, &in); err != nil {
		t.Fatal(err)
	}
	var list []policies.Policy
	if _, err := fs.Stat(fsys, "policies"); err == nil {
		folder, err := fs.Sub(fsys, "policies")
		if err != nil {
			t.Fatal(err)
		}
		if list, err = policies.Load(folder); err != nil {
			t.Fatal(err)
		}
	}
	set, broken := engine.Compile(t.Context(), list, policies.Options{})
	decision, err := yaml.Marshal(decide(t, set, in))
	if err != nil {
		t.Fatal(err)
	}
	if broken != nil {
		return "# " + strings.ReplaceAll(broken.Error(), "\n", "\n# ") + "\n" + string(decision)
	}
	return string(decision)
}
