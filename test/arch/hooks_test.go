package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/hook"
)

// disjunction finds the strings of CUE's definition #Hook, which ends where the
// next line holds no alternative.
var (
	disjunction = regexp.MustCompile(`(?m)^#Hook:((?:\s*"[^"]+"\s*\|?)+)`)
	alternative = regexp.MustCompile(`"([^"]+)"`)
)

// cueHooks returns the sorted alternatives of #Hook in a CUE file.
func cueHooks(source []byte) []string {
	var names []string
	if found := disjunction.FindSubmatch(source); found != nil {
		for _, a := range alternative.FindAllSubmatch(found[1], -1) {
			names = append(names, string(a[1]))
		}
	}
	slices.Sort(names)
	return names
}

func TestTheSchemaNamesTheHooksOfTheTable(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(root(t), "schemas/module/hooks_gen.cue"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(hook.Names(), cueHooks(source)); diff != "" {
		t.Errorf("hook.Table (-) and the schema's #Hook (+) differ; run make generate:\n%s", diff)
	}
}

func TestDisjunctionsAreReadWhole(t *testing.T) {
	source := "package p\n\n#Other: \"no\"\n#Hook: \"b\" |\n\t\"a/x\" |\n\t\"c.d\"\n\n#Next: \"not this\"\n"
	if diff := cmp.Diff([]string{"a/x", "b", "c.d"}, cueHooks([]byte(source))); diff != "" {
		t.Error(diff)
	}
}
