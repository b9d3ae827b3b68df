package policies_test

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/policies"
)

var update = flag.Bool("update", false, "write the golden decisions anew")

// TestCases runs testdata/cases: each holds an input, a folder of policies, and
// the decision it is to come to, all as YAML.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := decideCase(t, archive)
			want := &archive.Files[len(archive.Files)-1]
			if *update {
				want.Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(want.Data), got); diff != "" || want.Name != "decision.yaml" {
				t.Errorf("%s: %s", want.Name, diff)
			}
		})
	}
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
