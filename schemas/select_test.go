package schemas_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/schemas"
)

// chosen has two packages in one folder, a package below, and a YAML file.
const chosen = `
-- apps/prod.cue --
package prod

import "skep.dev/schemas"

_app: schemas.#ClusterBpfApplication & {spec: {bytecode: image: "x", programs: [{name: "f"}]}}
edge: one: _app & {metadata: name: "one"}
edge: two: _app & {metadata: name: "two"}
core: three: _app & {metadata: name: "three"}
broken: four: _app & {metadata: name: 4}
-- apps/dev.cue --
package dev

import "skep.dev/schemas"

five: schemas.#ClusterBpfApplication & {metadata: name: "five", spec: {bytecode: image: "x", programs: [{name: "f"}]}}
-- apps/below/six.cue --
package dev

import "skep.dev/schemas"

six: schemas.#ClusterBpfApplication & {metadata: name: "six", spec: {bytecode: image: "x", programs: [{name: "f"}]}}
-- apps/seven.yaml --
apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: seven}
spec: {bytecode: {image: x}, programs: [{name: f}]}
`

func TestAPackageOrExpressionsAreRenderedAlone(t *testing.T) {
	for name, c := range map[string]struct {
		o          schemas.Options
		want, told []string
	}{
		"a package, and no folder below": {
			o:    schemas.Options{Path: "apps", Package: "dev"},
			want: []string{"five apps/dev.cue:5:1"},
		},
		"an expression, whatever is broken beside it": {
			o:    schemas.Options{Path: "apps", Package: "prod", Expressions: []string{"edge"}},
			want: []string{"one apps/prod.cue:6:7", "two apps/prod.cue:7:7"},
		},
		"several expressions": {
			o:    schemas.Options{Path: "apps", Package: "prod", Expressions: []string{"core", "edge.two"}},
			want: []string{"three apps/prod.cue:8:7", "two apps/prod.cue:7:7"},
		},
		"what two expressions give alike is one definition": {
			o:    schemas.Options{Path: "apps", Package: "prod", Expressions: []string{"edge.two", "edge.two"}},
			want: []string{"two apps/prod.cue:7:7"},
		},
		"an expression of a file": {
			o:    schemas.Options{Path: "apps/prod.cue", Expressions: []string{"{if true {core}}"}},
			want: []string{"three apps/prod.cue:8:7"},
		},
		"an expression that nothing has": {
			o:    schemas.Options{Path: "apps", Package: "prod", Expressions: []string{"egde"}},
			told: []string{`apps: reference "egde" not found`},
		},
		"an expression that is none": {
			o:    schemas.Options{Path: "apps", Package: "prod", Expressions: []string{"edge["}},
			told: []string{`unknown position: the expression edge[ cannot be read`},
		},
		"a package that is not there": {
			o:    schemas.Options{Path: "apps", Package: "staging"},
			told: []string{"apps: "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Root = source(t, chosen)
			d := load(t, c.o)
			if diff := cmp.Diff(c.want, names(d)); diff != "" {
				t.Error(diff)
			}
			if got := told(d); len(got) != len(c.told) {
				t.Errorf("problems %q, want %q", got, c.told)
			} else {
				for i, want := range c.told {
					if !strings.HasPrefix(got[i], want) {
						t.Errorf("problem %q, want %q", got[i], want)
					}
				}
			}
		})
	}
}

func TestWhatIsNoPackageIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		o    schemas.Options
		want string
	}{
		"no name":            {schemas.Options{Path: "apps", Package: "*"}, `"*" is no name of a CUE package`},
		"a folder of none":   {schemas.Options{Path: ".", Package: "dev"}, "there is no CUE"},
		"a file of YAML":     {schemas.Options{Path: "apps/seven.yaml", Expressions: []string{"x"}}, "there is no CUE"},
		"a package's file":   {schemas.Options{Path: "apps/dev.cue", Package: "dev"}, "name the folder"},
		"a stream of yaml":   {schemas.Options{Stream: strings.NewReader(""), Package: "dev"}, "a stream has neither"},
		"an expression of a": {schemas.Options{Stream: strings.NewReader(""), Expressions: []string{"a"}}, "a stream has neither"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.o.Stream == nil {
				c.o.Root = source(t, chosen)
			}
			if _, err := schemas.Load(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
