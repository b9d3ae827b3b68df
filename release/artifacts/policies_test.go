package artifacts_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/skep-dev/skep/release/artifacts"
)

// read is an artifact of the policies as OPA reads it from a registry.
func read(t *testing.T, folder, repository string) bundle.Bundle {
	t.Helper()
	image := fetched(t, folder+"/"+repository+":"+version)
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	// OPA looks for the layer by its media type.
	if manifest.Config.MediaType != types.OCIConfigJSON || manifest.Layers[0].MediaType != types.OCILayer {
		t.Fatalf("%s is of %s with a layer of %s", repository, manifest.Config.MediaType, manifest.Layers[0].MediaType)
	}
	if got := title(t, image); got != "bundle.tar.gz" {
		t.Errorf("the file of %s is called %q", repository, got)
	}
	content := onlyLayer(t, image)
	defer content.Close()
	b, err := bundle.NewReader(content).WithRegoVersion(ast.RegoV1).Read()
	if err != nil {
		t.Fatalf("%s: %v", repository, err)
	}
	return b
}

// evaluated is the value of a query, by a bundle alone.
func evaluated(t *testing.T, b bundle.Bundle, query string, input map[string]any) any {
	t.Helper()
	result, err := rego.New(rego.ParsedBundle("skep", &b), rego.Query(query), rego.Input(input), rego.StrictBuiltinErrors(true)).Eval(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(result) == 0 {
		return nil
	}
	return result[0].Expressions[0].Value
}

func TestOPAReadsThePolicyLibraryFromARegistry(t *testing.T) {
	all, err := artifacts.Policies(version)
	if err != nil {
		t.Fatal(err)
	}
	folder := served(t, all...)
	input := map[string]any{
		"application": map[string]any{"metadata": map[string]any{"name": "a", "namespace": "team-a"}, "spec": map[string]any{"programs": []any{}}},
		"image":       map[string]any{"registry": "r.example.com", "repository": "a", "mismatches": []any{}},
		"bytecode":    map[string]any{"programs": []any{}, "maps": []any{}},
		"signers":     []any{},
		"parameters":  map[string]any{"exemptNamespace": []any{"team-a"}},
	}
	for repository, rules := range map[string][]string{
		"policies/baseline":   {"parameters"},
		"policies/restricted": {"parameters", "images", "signers"},
		"policies/library":    nil,
	} {
		b := read(t, folder, repository)
		if b.Manifest.Revision != version || !slices.Equal(*b.Manifest.Roots, []string{"helpers", "hooks", "kfuncs", "skep"}) {
			t.Errorf("%s is of revision %s with roots %v", repository, b.Manifest.Revision, *b.Manifest.Roots)
		}
		if evaluated(t, b, `data.skep.lib.matches_any(["r.example.com/*"], "r.example.com/a")`, nil) != true {
			t.Errorf("%s does not have the functions of the library", repository)
		}
		if evaluated(t, b, `data.hooks.xdp.name`, nil) != "xdp" {
			t.Errorf("%s does not have the table of hooks", repository)
		}
		denied := evaluated(t, b, `{r.rule | some r in data.skep.policy.deny}`, input)
		if rules == nil {
			if denied != nil && len(denied.([]any)) > 0 {
				t.Errorf("%s denies by %v", repository, denied)
			}
			continue
		}
		for _, rule := range rules {
			if found, ok := denied.([]any); !ok || !slices.Contains(found, any(rule)) {
				t.Errorf("%s does not deny by %s, but by %v", repository, rule, denied)
			}
		}
	}
	if diff := cmp.Diff(3, len(all)); diff != "" {
		t.Error(diff)
	}
}
