package schemas_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/schemas"
)

// editor is the JSON Schema as an editor has it.
func editor(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemas.JSONSchema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("skep.dev.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("skep.dev.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// accepts is nil where an editor marks nothing in a document.
func accepts(schema *jsonschema.Schema, document string) error {
	data, err := yaml.YAMLToJSON([]byte(document))
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return schema.Validate(v)
}

func TestEditorsAcceptTheExamples(t *testing.T) {
	schema, seen := editor(t), 0
	err := filepath.WalkDir("../examples", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for document := range strings.SplitSeq(string(data), "\n---\n") {
			if !strings.Contains(document, "apiVersion: skep.dev/") {
				continue
			}
			seen++
			if err := accepts(schema, document); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		return nil
	})
	if err != nil || seen < 10 {
		t.Fatalf("%d documents seen, %v", seen, err)
	}
}

func TestEditorsRejectMistakes(t *testing.T) {
	const good = `
apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: hello}
spec:
  bytecode: {image: "oci:/srv/bpf/hello:v1"}
  variables: {sampling: 1}
  programs:
  - name: hello
    attach:
    - interfaces: {names: [lo]}
`
	schema := editor(t)
	if err := accepts(schema, good); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ before, after string }{
		"a field that there is not":        {"variables:", "variable:"},
		"a field below that there is not":  {"names:", "name:"},
		"a kind that there is not":         {"ClusterBpfApplication", "BpfProgram"},
		"a version that there is not":      {"v1alpha1", "v1"},
		"a number in the place of a name":  {"name: hello\n    attach", "name: 7\n    attach"},
		"an object in the place of a list": {"- interfaces: {names: [lo]}", "  interfaces: {names: [lo]}"},
	} {
		bad := strings.Replace(good, c.before, c.after, 1)
		if bad == good {
			t.Fatalf("%s: nothing changed", name)
		}
		if accepts(schema, bad) == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
