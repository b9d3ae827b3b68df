package schemas_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/schemas"
)

const two = `
-- a.cue --
package a

import "skep.dev/schemas"

policy: schemas.#ClusterBpfPolicy & {metadata: name: "p", spec: {profile: "baseline", parameters: {text: "<&>", most: 18446744073709551615}}}
app: schemas.#ClusterBpfApplication & {
	metadata: name: "a"
	spec: {bytecode: image: "x", programs: [{name: "f", attach: [{hook: "uprobe", binary: {path: "/b", offset: 9223372036854775807}}]}]}
}
`

func TestWriteYAML(t *testing.T) {
	objects, problems, err := schemas.Render(t.Context(), schemas.Options{Root: source(t, two)})
	if err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	var got bytes.Buffer
	if err := schemas.Write(&got, objects, schemas.YAML); err != nil {
		t.Fatal(err)
	}
	want := `apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata:
  name: a
spec:
  bytecode:
    image: x
  programs:
  - attach:
    - binary:
        offset: 9223372036854775807
        path: /b
      hook: uprobe
    name: f
---
apiVersion: skep.dev/v1alpha1
kind: ClusterBpfPolicy
metadata:
  name: p
spec:
  parameters:
    most: 18446744073709551615
    text: <&>
  profile: baseline
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatWasWrittenLoadsAsTheSame(t *testing.T) {
	// A reader of YAML takes no control character as it is.
	hostile := strings.ReplaceAll(two, "<&>", `\u009b2J\u202e\U000e0001\u007f`)
	objects, _, err := schemas.Render(t.Context(), schemas.Options{Root: source(t, hostile)})
	if err != nil {
		t.Fatal(err)
	}
	for format, name := range map[schemas.Format]string{schemas.YAML: "a.yaml", schemas.JSON: "a.json"} {
		var b bytes.Buffer
		if err := schemas.Write(&b, objects, format); err != nil {
			t.Fatal(err)
		}
		again, problems, err := schemas.Render(t.Context(), schemas.Options{Root: source(t, "-- "+name+" --\n"+b.String())})
		if err != nil || len(problems) > 0 {
			t.Fatal(problems, err)
		}
		if diff := cmp.Diff(values(t, objects), values(t, again)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", format, diff)
		}
	}
}

// values decodes objects with their numbers as they are written.
func values(t *testing.T, objects []schemas.Object) []any {
	t.Helper()
	var all []any
	for _, o := range objects {
		dec := json.NewDecoder(bytes.NewReader(o.JSON))
		dec.UseNumber()
		var v any
		if err := dec.Decode(&v); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

// full is a disk without room.
type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteErrorsKeepTheirCause(t *testing.T) {
	objects := []schemas.Object{{JSON: []byte("{}")}}
	for _, f := range []schemas.Format{schemas.YAML, schemas.JSON} {
		if err := schemas.Write(full{}, objects, f); !errors.Is(err, errFull) {
			t.Errorf("%s: %v", f, err)
		}
	}
	if err := schemas.Write(&bytes.Buffer{}, objects, "toml"); err == nil {
		t.Error("an unknown format was written")
	}
}
