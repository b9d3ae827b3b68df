package schemas_test

import (
	"testing"

	"github.com/skep-dev/skep/schemas"
)

func TestFieldsKnowTheirPlaces(t *testing.T) {
	dir := source(t, `
-- app.yaml --
apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: in-yaml}
spec:
  bytecode:
    image: r.example.com/x:v1
  variables:
    port: 80
  programs:
  - name: f
    attach:
    - hook: xdp
      interfaces: {names: [eth0]}
    - {hook: tcx/ingress, interfaces: {names: [eth1]}}
-- cue/app.cue --
package app

import "skep.dev/schemas"

schemas.#ClusterBpfApplication & {
	metadata: name: "in-cue"
	spec: {
		bytecode: image: "r.example.com/x:v1"
		programs: [#watch & {name: "f"}]
	}
}

#watch: {
	name: string
	attach: [{
		hook: "xdp"
		interfaces: names: ["eth0"]
	}]
}
`)
	for _, asked := range []bool{true, false} {
		defs, err := schemas.Load(t.Context(), schemas.Options{Root: dir, Places: asked})
		if err != nil || len(defs.Applications) != 2 || len(defs.Problems) > 0 {
			t.Fatalf("load: %+v, %v", defs, err)
		}
		for i, places := range []map[string]string{
			{
				"":                                 "cue/app.cue:1:1",
				"spec.bytecode.image":              "cue/app.cue:8:20",
				"spec.programs[0].name":            "cue/app.cue:9:30",
				"spec.programs[0].attach[0].hook":  "cue/app.cue:16:9",
				"spec.programs[0].attach[0].mount": "cue/app.cue:15:11",
			},
			{
				"":                                         "app.yaml:1:1",
				"spec.bytecode.image":                      "app.yaml:6:5",
				"spec.variables.port":                      "app.yaml:8:5",
				"spec.variables.other":                     "app.yaml:7:3",
				"spec.programs[0].attach[0].hook":          "app.yaml:12:7",
				"spec.programs[0].attach[1].hook":          "app.yaml:14:8",
				"spec.programs[0].attach[1].priority":      "app.yaml:14:7",
				"spec.programs[0].attach[9].interfaces[1]": "app.yaml:11:5",
				"status.nothing":                           "app.yaml:1:1",
			},
		} {
			d := defs.Applications[i]
			for path, want := range places {
				if !asked {
					want = d.Source.String()
				}
				if got := d.At(path).String(); got != want {
					t.Errorf("%s at %q is at %s, want %s", d.Application.GetName(), path, got, want)
				}
			}
		}
	}
}
