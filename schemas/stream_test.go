package schemas_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/schemas"
)

func TestStreamIsReadWithinTheBoundOfAFile(t *testing.T) {
	const one = "apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: one}\n" +
		"spec: {bytecode: {image: \"r.example.com/x:v1\"}, programs: [{name: f}]}\n"
	other := "---\nkind: Other\nspec: {a: b}\n---\n" + one
	defs, err := schemas.Load(t.Context(), schemas.Options{Stream: strings.NewReader(other)})
	if err != nil || len(defs.Problems) > 0 || len(defs.Applications) != 1 {
		t.Fatalf("a stream: %+v, %v; want one application", defs, err)
	}
	if at := defs.Applications[0].Source.String(); at != "stdin:5:1" {
		t.Errorf("it is at %s, want stdin:5:1", at)
	}
	defs, err = schemas.Load(t.Context(), schemas.Options{Stream: strings.NewReader(one + strings.Repeat("#", 4<<20))})
	if err != nil || len(defs.Problems) != 1 || len(defs.Applications) > 0 || !strings.Contains(defs.Problems[0].Message, "larger than 4 MiB") {
		t.Errorf("a stream over the bound: %+v, %v; want one problem", defs, err)
	}
}
