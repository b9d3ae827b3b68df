package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// thing is a CRD that has what the kinds of Skep have.
const thing = `
spec:
  group: skep.dev
  names: {kind: KIND, plural: things, shortNames: [thing]}
  scope: SCOPE
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        description: KIND is one.
        required: [spec]
        properties:
          apiVersion: {type: string}
          metadata: {type: object}
          spec:
            type: object
            required: [name]
            properties:
              count: {type: integer, format: int32, minimum: 0, maximum: 5, default: 3}
              any: {x-kubernetes-preserve-unknown-fields: true}
              many: {type: integer, minimum: 2}
              name:
                type: string
                description: |-
                  Name is a|b
                  or c.
                minLength: 1
                maxLength: 8
                pattern: ^(a|b)$
              list:
                type: array
                maxItems: 2
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [key]
                items:
                  type: object
                  required: [key]
                  properties: {key: {type: string, enum: [A, B]}}
              map: {type: object, maxProperties: 9, additionalProperties: {type: string, maxLength: 4}}
              steps: {type: array, minItems: 1, maxItems: 1, items: {x-kubernetes-int-or-string: true}}
              selector: {type: object, properties: {matchLabels: {type: object}, matchExpressions: {type: array, items: {type: object}}}}
            x-kubernetes-validations:
            - {rule: a, message: give one}
            - {rule: c, message: KIND says so}
            - {rule: b, fieldPath: .name, messageExpression: self.name + ' is too much'}
          status:
            type: object
            properties:
              conditions: {type: array, items: {type: object, properties: {type: {type: string}}}}
`

// crds writes CRDs to a folder: pairs of kind and scope.
func crds(t *testing.T, text string, kinds ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(kinds); i += 2 {
		body := strings.NewReplacer("KIND", kinds[i], "SCOPE", kinds[i+1]).Replace(text)
		if err := os.WriteFile(filepath.Join(dir, kinds[i]+".yaml"), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestThePageTellsEveryFieldOnceForBothScopes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "api.md")
	if err := run(crds(t, thing, "ClusterThing", "Cluster", "Thing", "Namespaced"), file); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := intro + `
## ClusterThing, Thing

ClusterThing is one. Short: ` + "`thing`" + `; of the cluster.

Thing is one. Short: ` + "`thing`" + `; of a namespace.

| field | type | takes | |
|---|---|---|---|
| **'spec'** | object |  |  |
| **'spec.name'** | string | 1 to 8 characters; '^(a\|b)$' | Name is a\|b or c. |
| 'spec.any' | anything |  |  |
| 'spec.count' | int32 | default '3'; 0 to 5 |  |
| 'spec.list' | list of object | at most 2 items; one of each 'key' |  |
| **'spec.list[].key'** | string | 'A', 'B' |  |
| 'spec.many' | integer | 2 or more |  |
| 'spec.map' | map to string | at most 9 entries; each: at most 4 characters |  |
| 'spec.selector' | label selector |  |  |
| 'spec.steps' | list of integer or string | 1 items |  |
| 'status' | object |  |  |
| 'status.conditions' | list of object |  |  |

And what joins them:

- 'spec': give one
- of a ClusterThing alone, 'spec': ClusterThing says so
- 'spec.name': 'name' is too much
- of a Thing alone, 'spec': Thing says so
`
	if diff := cmp.Diff(strings.ReplaceAll(want, "'", "`"), strings.ReplaceAll(string(got), "'", "`")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestKindsThatDifferStandApart(t *testing.T) {
	dir := crds(t, thing, "ClusterThing", "Cluster")
	if err := os.Rename(filepath.Join(crds(t, strings.ReplaceAll(thing, "maximum: 5", "maximum: 6"), "Thing", "Namespaced"), "Thing.yaml"),
		filepath.Join(dir, "Thing.yaml")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "api.md")
	if err := run(dir, file); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil || strings.Count(string(got), "\n## ") != 2 {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestWhatNoPageCanBeMadeOfIsRefused(t *testing.T) {
	for sentence, c := range map[string]struct{ dir, says string }{
		"a folder without CRDs":    {t.TempDir(), "there is no CRD"},
		"a field that CRDs lack":   {crds(t, "spek: {}", "Thing", "Cluster"), "read "},
		"a kind of two versions":   {crds(t, thing+"  - {name: v1, served: true, storage: false}\n", "Thing", "Cluster"), "has 2 versions"},
		"a kind without a version": {crds(t, "spec: {names: {kind: KIND}}", "Thing", "Cluster"), "has 0 versions"},
	} {
		t.Run(sentence, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "api.md")
			if err := run(c.dir, file); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
			if _, err := os.Stat(file); err == nil {
				t.Error("a page was written all the same")
			}
		})
	}
}
