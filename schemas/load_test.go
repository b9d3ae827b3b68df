package schemas_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/schemas"
)

// names lists the applications of d with their positions.
func names(d schemas.Definitions) []string {
	var all []string
	for _, a := range d.Applications {
		all = append(all, a.Application.Identity().String()+" "+a.Source.String())
	}
	return all
}

// told lists the problems of d.
func told(d schemas.Definitions) []string {
	var all []string
	for _, p := range d.Problems {
		all = append(all, p.Error())
	}
	return all
}

func TestLoad(t *testing.T) {
	for name, c := range map[string]struct {
		source, path string
		tags         []string
		want, told   []string
	}{
		"a loop defines ten applications": {
			source: `
-- apps/a.cue --
package apps

import (
	"list"
	"skep.dev/schemas"
)

for i in list.Range(0, 10, 1) {
	"edge-\(i)": schemas.#ClusterBpfApplication & {
		metadata: name: "edge-\(i)"
		spec: {bytecode: image: "x", programs: [{name: "f"}]}
	}
}
`,
			want: []string{
				"edge-0 apps/a.cue:9:2", "edge-1 apps/a.cue:9:2", "edge-2 apps/a.cue:9:2", "edge-3 apps/a.cue:9:2", "edge-4 apps/a.cue:9:2",
				"edge-5 apps/a.cue:9:2", "edge-6 apps/a.cue:9:2", "edge-7 apps/a.cue:9:2", "edge-8 apps/a.cue:9:2", "edge-9 apps/a.cue:9:2",
			},
		},
		"a bad definition hides none of the good ones beside it": {
			source: `
-- a.cue --
package a

import "skep.dev/schemas"

#base: schemas.#ClusterBpfApplication & {spec: {bytecode: image: "x", programs: [{name: "f"}]}}
_template: #base & {metadata: name: "not-walked"}
one: #base & {metadata: name: "one"}
two: #base & {metadata: name: "two", spec: programs: [{name: 3}]}
three: #base & {metadata: name: "three"}
stray: 1 & 2
-- b.yaml --
apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: four}
spec: {bytecode: {image: x}, programs: [{name: f}]}
---
kind: [
# skep.dev/
---
apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: five}
spec: {bytecode: {image: x}, programs: [{name: f}]}
--- # a marker may carry a comment
apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: six}
spec: {bytecode: {image: x}, program: [{name: f}]}
...
--- {apiVersion: skep.dev/v1alpha1, kind: BpfPolicy, metadata: {name: p}, spec: {profile: baseline}}
`,
			want: []string{"five b.yaml:9:1", "four b.yaml:1:1", "one a.cue:7:1", "three a.cue:9:1"},
			told: []string{
				`a.cue:8:62: ClusterBpfApplication two: two.spec.programs[0].name: conflicting values 3 and "f" (mismatched types int and string), ` +
					`given at a.cue:8:62 and a.cue:5:89 and a.cue:8:6 (name the function in the object, in 1 to 128 characters)`,
				`a.cue:10:12: stray: conflicting values 2 and 1 (correct the file at this place)`,
				`b.yaml:7:1: malformed YAML: did not find expected node content (correct the file at this place)`,
				`b.yaml:17:30: ClusterBpfApplication six: spec.program: field program is not known here (remove it, or use one of alternatives, bytecode, maps, ` +
					`nodeSelector, programs, rollout, suspend, variables)`,
			},
		},
		"two of one identity are both refused, each with the other's place": {
			source: `
-- a/a.yaml --
apiVersion: skep.dev/v1alpha1
kind: BpfApplication
metadata: {name: x}
spec: {bytecode: {image: x}, programs: [{name: f}]}
---
apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: x}
spec: {bytecode: {image: x}, programs: [{name: f}]}
-- b/b.cue --
package b

import "skep.dev/schemas"

x: schemas.#BpfApplication & {
	metadata: {name: "x", namespace: "default"}
	spec: {bytecode: image: "x", programs: [{name: "f"}]}
}
`,
			want: []string{"x a/a.yaml:6:1"},
			told: []string{
				`a/a.yaml:1:1: BpfApplication default/x: BpfApplication default/x is defined 2 times, ` +
					`also at b/b.cue:5:1 (x) (keep one of them or give them different names)`,
				`b/b.cue:5:1: BpfApplication default/x: x: BpfApplication default/x is defined 2 times, ` +
					`also at a/a.yaml:1:1 (keep one of them or give them different names)`,
			},
		},
		"a package below another of its name holds its definitions once": {
			source: `
-- a.cue --
package a

import "skep.dev/schemas"

apps: one: schemas.#ClusterBpfApplication & {
	metadata: name: "one"
	spec: {bytecode: image: "x", programs: [{name: "f"}]}
}
-- sub/b.cue --
package a

import "skep.dev/schemas"

apps: two: schemas.#ClusterBpfApplication & {
	metadata: name: "two"
	spec: {bytecode: image: "x", programs: [{name: "f"}]}
}
`,
			want: []string{"one a.cue:5:7", "two sub/b.cue:5:7"},
		},
		"a package below another that changes what it inherits is refused": {
			source: `
-- a.cue --
package a

import "skep.dev/schemas"

image: string | *"x"
app: schemas.#ClusterBpfApplication & {
	metadata: name: "one"
	spec: {bytecode: "image": image, programs: [{name: "f"}]}
}
-- sub/b.cue --
package a

image: "y"
`,
			told: []string{
				`a.cue:6:1: ClusterBpfApplication one: app: ClusterBpfApplication one is defined 2 times, ` +
					`also at a.cue:6:1 (app) (keep one of them or give them different names)`,
				`a.cue:6:1: ClusterBpfApplication one: app: ClusterBpfApplication one is defined 2 times, ` +
					`also at a.cue:6:1 (app) (keep one of them or give them different names)`,
			},
		},
		"tags reach the packages that have a place for them": {
			source: `
-- a/a.cue --
package a

import "skep.dev/schemas"

env: *"dev" | string @tag(env)
app: schemas.#ClusterBpfApplication & {
	metadata: name: "a-\(env)"
	spec: {bytecode: image: "x", programs: [{name: "f"}]}
}
-- b/b.cue --
@if(extra)

package b

import "skep.dev/schemas"

schemas.#ClusterBpfApplication & {
	metadata: name: "b"
	spec: {bytecode: image: "x", programs: [{name: "f"}]}
}
`,
			tags: []string{"env=prod", "extra", "typo=1"},
			want: []string{"a-prod a/a.cue:6:1", "b b/b.cue:1:1"},
			told: []string{"unknown position: no file has a place for the tag typo (add @tag(typo) to a field or leave the tag out)"},
		},
		"hidden folders, tools, tests and other data do not count": {
			source: `
-- .github/a.yaml --
# skep.dev/
}
-- _lib/a.cue --
package lib
x: 1 & 2
-- a_tool.cue --
package a
x: 1 & 2
-- b_test.cue --
package a
x: 1 & 2
-- chart/values.yaml --
{{ .Values }}
-- cue.mod/pkg/k8s.io/x.cue --
package x
kind: "Deployment"
-- good.yaml --
` + good + `
-- x.yaml --
apiVersion: apps/v1
kind: Deployment
metadata: {name: skep.dev/x}
`,
			want: []string{"good good.yaml:1:1"},
		},
		"a path limits what is read, and the module around it still counts": {
			source: `
-- cue.mod/module.cue --
module: "example.com/fleet@v0"
language: version: "v0.14.0"
-- lib/lib.cue --
package lib

image: "from/lib:v1"
bad: 1 & 2
-- apps/a.cue --
package apps

import (
	"example.com/fleet/lib"
	"skep.dev/schemas"
)

app: schemas.#ClusterBpfApplication & {
	metadata: name: "a"
	spec: {bytecode: image: lib.image, programs: [{name: "f"}]}
}
-- other.yaml --
` + good,
			path: "apps",
			want: []string{"a apps/a.cue:8:1"},
		},
		"a file by itself is read without its package": {
			source: `
-- a.cue --
package a

import "skep.dev/schemas"

app: schemas.#ClusterBpfApplication & {
	metadata: name: "a"
	spec: {bytecode: image: "x", programs: [{name: "f"}]}
}
-- b.cue --
package a
app: spec: suspend: 3
`,
			path: "a.cue",
			want: []string{"a a.cue:5:1"},
		},
		"a module's dependency on the schema is answered from the binary": {
			source: `
-- fleet/cue.mod/module.cue --
module: "example.com/fleet@v0"
language: version: "v0.14.0"
deps: "skep.dev/schemas@v1": {v: "v1.7.0", default: true}
-- fleet/a.cue --
package a

import "skep.dev/schemas@v1"

app: schemas.#ClusterBpfApplication & {
	metadata: name: "a"
	spec: {bytecode: image: "x", programs: [{name: "f", attach: [{hook: "xdp", cgroup: "/"}]}]}
}
`,
			told: []string{
				`fleet/a.cue:7:85: ClusterBpfApplication a: app.spec.programs[0].attach[0].cgroup: xdp attaches to network devices and takes no cgroup (remove it)`,
			},
		},
		"a module of an older language is told so": {
			source: `
-- cue.mod/module.cue --
module: "example.com/fleet@v0"
language: version: "v0.9.0"
-- a.cue --
package a

import "skep.dev/schemas"

schemas.#BpfSigner & {metadata: name: "s", spec: key: publicKey: "x"}
`,
			told: []string{
				`cue.mod/module.cue: the module's language version v0.9.0 is older than v0.14.0, for which the schema is written (set language: version: ` +
					`"v0.14.0" or newer in it)`,
			},
		},
		"a vendored copy of the schema that says less is not believed": {
			source: `
-- cue.mod/module.cue --
module: "example.com/fleet@v0"
language: version: "v0.14.0"
-- cue.mod/pkg/skep.dev/schemas/application.cue --
package schemas
#ClusterBpfApplication: {apiVersion: "skep.dev/v1alpha1", kind: "ClusterBpfApplication", ...}
-- a.cue --
package a

import "skep.dev/schemas"

app: schemas.#ClusterBpfApplication & {
	metadata: name: "a"
	spec: {bytecode: image: "x", programs: [{nam: "f"}]}
}
`,
			told: []string{
				`a.cue:7:43: ClusterBpfApplication a: app.spec.programs[0].nam: field nam is not known here (remove it, or use one of attach, name, optional)`,
			},
		},
		"several packages of one folder are all rendered": {
			source: `
-- a.cue --
package a

import "skep.dev/schemas"

schemas.#ClusterBpfApplication & {metadata: name: "a", spec: {bytecode: image: "x", programs: [{name: "f"}]}}
-- b.cue --
package b

import "skep.dev/schemas"

schemas.#ClusterBpfApplication & {metadata: name: "b", spec: {bytecode: image: "x", programs: [{name: "f"}]}}
-- c.cue --
import "skep.dev/schemas"

schemas.#ClusterBpfApplication & {metadata: name: "c", spec: {bytecode: image: "x", programs: [{name: "f"}]}}
`,
			want: []string{"a a.cue:1:1", "b b.cue:1:1", "c c.cue:1:1"},
		},
		"a misspelt group hides no good definition": {
			source: "-- a.yaml --\n" + strings.ReplaceAll(good, "skep.dev", "skep.io") + "-- b.yaml --\n" + good +
				"-- c.cue --\npackage c\nx: {apiVersion: \"skepdev/v1alpha1\", kind: \"BpfSigner\", spec: {}}\n",
			want: []string{"good b.yaml:1:1"},
			told: []string{
				`a.yaml:1:1: ClusterBpfApplication good: apiVersion: "skep.io/v1alpha1" is not the apiVersion of a ClusterBpfApplication (write apiVersion: ` +
					`skep.dev/v1alpha1)`,
				`c.cue:2:5: x.apiVersion: "skepdev/v1alpha1" is not the apiVersion of a BpfSigner (write apiVersion: skep.dev/v1alpha1)`,
			},
		},
		"what only resembles a definition is left alone": {
			source: `
-- bpfman.yaml --
apiVersion: bpfman.io/v1alpha1
kind: ClusterBpfApplication
metadata: {name: theirs}
spec: {}
-- chart.yaml --
{{ if .Values.bpf }}
kind: BpfApplication
{{ end }}
-- crd.yaml --
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: x}
spec: {names: {kind: BpfApplication, plural: bpfapplications}}
-- k8s.cue --
package k8s
#Object: {apiVersion: string, kind: string, metadata: name: string}
app: #Object & {apiVersion: "apps/v1", kind: "Deployment", metadata: name: "x"}
-- rbac.yaml --
apiVersion: v1
kind: List
items: [{kind: BpfApplication, name: ref}]
`,
		},
		"nothing is in an empty folder": {source: "-- README.md --\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := load(t, schemas.Options{Root: source(t, c.source), Path: c.path, Tags: c.tags})
			if diff := cmp.Diff(c.want, names(d)); diff != "" {
				t.Errorf("applications (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.told, told(d)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			for id, at := range d.Sources {
				if at.File == "" || at.Line == 0 || id.Name == "" {
					t.Errorf("%v was written at %v", id, at)
				}
			}
		})
	}
}

func TestLoadKeepsWhatWasWritten(t *testing.T) {
	dir := source(t, `
-- a.cue --
package a

import "skep.dev/schemas"

app: schemas.#ClusterBpfApplication & {
	metadata: {name: "a", labels: tier: "edge"}
	spec: {
		bytecode: image: "x"
		variables: {max: 18446744073709551615, min: -9223372036854775808, small: 9007199254740992, text: "<&>"}
		programs: [{name: "f", attach: [{hook: "uprobe", binary: {path: "/bin/sh", offset: 9223372036854775807}}]}]
	}
}
policy: schemas.#BpfPolicy & {metadata: name: "p", spec: {profile: "restricted", parameters: most: 18446744073709551615}}
house: schemas.#ClusterBpfPolicy & {metadata: name: "h", spec: rego: "package skep.policy\n"}
signer: schemas.#BpfSigner & {metadata: name: "s", spec: key: publicKey: "pem"}
`)
	d := load(t, schemas.Options{Root: dir})
	if len(d.Problems) > 0 || len(d.Applications) != 1 || len(d.Policies) != 1 || len(d.ClusterPolicies) != 1 || len(d.Signers) != 1 {
		t.Fatalf("%+v", d)
	}
	app, ok := d.Applications[0].Application.(*v1alpha1.ClusterBpfApplication)
	if !ok || app.Namespace != "" || app.Labels["tier"] != "edge" || app.Kind != "ClusterBpfApplication" || app.APIVersion != v1alpha1.APIVersion {
		t.Errorf("%+v", app)
	}
	got := map[string]string{"parameter": string(d.Policies[0].Spec.Parameters["most"].Raw)}
	for name, v := range app.Spec.Variables {
		got[name] = string(v.Raw)
	}
	want := map[string]string{
		"max": `"18446744073709551615"`, "min": `"-9223372036854775808"`, "small": "9007199254740992", "text": `"<&>"`, "parameter": "18446744073709551615",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	if got := app.Spec.Programs[0].Attach[0].Binary.Offset; got != 1<<63-1 {
		t.Errorf("offset is %d", got)
	}
	if d.Policies[0].Namespace != "default" || d.ClusterPolicies[0].Namespace != "" || d.Signers[0].Spec.Key.PublicKey != "pem" {
		t.Errorf("%+v", d)
	}
	if got := d.Sources[v1alpha1.Identity{Kind: "BpfSigner", Name: "s"}]; got != (schemas.Position{File: "a.cue", Line: 15, Column: 1}) {
		t.Errorf("the signer is at %v", got)
	}
}

func TestMayHide(t *testing.T) {
	id := func(name string) v1alpha1.Identity {
		return v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: name}
	}
	named := source(t, "-- a.yaml --\n"+strings.Replace(good, "name: f", "nam: f", 1))
	d := load(t, schemas.Options{Root: named})
	if !d.MayHide(id("good")) || d.MayHide(id("other")) {
		t.Errorf("a problem of good: %v", d.Problems)
	}
	for what, data := range map[string]string{
		"a file that does not parse":     "skep.dev/: [",
		"a definition whose name is bad": strings.Replace(good, "name: good", "name: [good]", 1),
		"a kind that this binary lacks":  strings.Replace(good, "ClusterBpfApplication", "ClusterBpfAplication", 1),
		"a definition that has no name":  strings.Replace(good, "name: good", "labels: {}", 1),
	} {
		d := load(t, schemas.Options{Root: source(t, "-- a.yaml --\n"+data)})
		if !d.MayHide(id("other")) || !d.MayHide(id("other"), "a.yaml") || d.MayHide(id("other"), "b.yaml") {
			t.Errorf("%s: %v", what, d.Problems)
		}
	}
	if d := load(t, schemas.Options{Root: source(t, "-- a.yaml --\n"+good)}); d.MayHide(id("other")) {
		t.Errorf("nothing is wrong: %v", d.Problems)
	}
}

// TestWhatSaysTheSameIsNotRenderedAgain: a context that ended ends a rendering.
func TestWhatSaysTheSameIsNotRenderedAgain(t *testing.T) {
	root := source(t, "-- a.yaml --\n"+good)
	var m schemas.Memory
	first, err := m.Load(t.Context(), schemas.Options{Root: root})
	if err != nil || len(first.Applications) != 1 {
		t.Fatalf("Load = %v, %v", first, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if again, err := m.Load(over, schemas.Options{Root: root}); err != nil || len(again.Applications) != 1 {
		t.Errorf("the same: %v, %v", again, err)
	}
	for what, o := range map[string]schemas.Options{"other options": {Root: root, Places: true}, "another path": {Root: root, Path: "a.yaml"}} {
		if _, err := m.Load(over, o); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	link := filepath.Join(root, "b.yaml")
	if err := os.Symlink("a.yaml", link); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Load(over, schemas.Options{Root: root}); !errors.Is(err, context.Canceled) {
		t.Errorf("a file that is not read beside it: %v", err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, "a.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(good, "name: good", "name: other", 1))
	if _, err := m.Load(over, schemas.Options{Root: root}); !errors.Is(err, context.Canceled) {
		t.Errorf("another text: %v", err)
	}
	write("skep.dev/: [")
	for range 2 {
		if d, err := m.Load(t.Context(), schemas.Options{Root: root}); err != nil || len(d.Problems) != 1 {
			t.Errorf("a problem: %v, %v", d.Problems, err)
		}
	}
	if _, err := m.Load(over, schemas.Options{Root: root}); !errors.Is(err, context.Canceled) {
		t.Errorf("a problem, again: %v", err)
	}
}

func TestEmptied(t *testing.T) {
	tree := func(files ...string) schemas.Definitions {
		text := ""
		for _, f := range files {
			name, body, _ := strings.Cut(f, "=")
			text += "-- " + name + " --\n" + body + "\n"
		}
		return load(t, schemas.Options{Root: source(t, text), Path: "apps"})
	}
	data := tree("apps/a.yaml="+good, "apps/b.yaml=", "apps/c.yaml=# https://skep.dev/schema", "apps/d.yaml=apiVersion: skep.dev/v1alpha1", "base.yaml=")
	blank := tree("base.cue=\ufeff// skep.dev\npackage x\n", "apps/x.cue=package x\nlet a = 1\n", "apps/_draft.cue=", "apps/x_test.cue=")
	other := tree("apps/sub/y.cue=", "apps/other/z.cue=package z\nlet a = 1\n")
	for _, c := range []struct {
		in          schemas.Definitions
		place, want string
	}{
		{data, "apps/a.yaml", ""},
		{data, "apps/b.yaml", "apps/b.yaml"},
		{data, "apps/c.yaml", "apps/c.yaml"},
		// It is a problem already.
		{data, "apps/d.yaml", ""},
		{data, "apps/gone.yaml", ""},
		{data, "apps/gone.cue", ""},
		{data, "", "apps/b.yaml"},
		{blank, "apps/x.cue", "base.cue"},
		{blank, "apps", "base.cue"},
		{blank, "apps/gone.yaml", ""},
		{blank, "", ""},
		{other, "apps/other/z.cue", ""},
		{other, "apps/sub/gone.cue", "apps/sub/y.cue"},
		{other, "", "apps/sub/y.cue"},
	} {
		if p, hides := c.in.Emptied(c.place); hides != (c.want != "") || p.Source.File != c.want {
			t.Errorf("Emptied(%q) = %v, want %q", c.place, p, c.want)
		}
	}
}

// wide is a text as editors of some systems save it: little-endian UTF-16.
func wide(text string) string {
	data := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(text)) {
		data = binary.LittleEndian.AppendUint16(data, unit)
	}
	return string(data)
}

func TestADefinitionInUTF16IsNotOverlooked(t *testing.T) {
	for what, c := range map[string]struct {
		text           string
		loads, problem int
	}{
		"a definition":                {good, 1, 0},
		"one whose group is misspelt": {strings.Replace(good, "skep.dev", "skepdev", 1), 0, 1},
		"one that does not parse":     {good + "  : [\n", 0, 1},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "a.yaml"), wide(c.text))
		if d := load(t, schemas.Options{Root: dir}); len(d.Applications) != c.loads || len(d.Problems) != c.problem {
			t.Errorf("%s: %v, problems %v", what, names(d), d.Problems)
		}
	}
}

func TestABrokenFileHidesWhatMayComeFromIt(t *testing.T) {
	const link = "a link"
	for what, c := range map[string]struct {
		file, broken, place string
		hides               bool
	}{
		"the definition was in that file":                {"b.yaml", "skep.dev/: [", "b.yaml", true},
		"the definition was in another file":             {"b.yaml", "skep.dev/: [", "a.yaml", false},
		"the file names the definition":                  {"b.yaml", "skep.dev/: [ app", "a.yaml", true},
		"the file names it in UTF-16":                    {"b.yaml", wide("skep.dev/: [ app"), "a.yaml", true},
		"the file may name it with an escape":            {"b.yaml", `"skep.dev/\u0061": [`, "a.yaml", true},
		"the definition was in that package":             {"p/b.cue", "package p\nx: y\n", "p/a.cue", true},
		"the package was the definition's":               {"p/b.cue", "package p\nx: y\n", "p", true},
		"the definition was in a package above":          {"p/b.cue", "package p\nx: y\n", "a.cue", true},
		"the definition was in a package beside":         {"p/b.cue", "package p\nx: y\n", "q/a.cue", false},
		"the definition was in a package below":          {"p/b.cue", "package p\nx: y\n", "p/q/a.cue", false},
		"the definition was in no CUE":                   {"p/b.cue", "package p\nx: y\n", "p/a.yaml", false},
		"the package does not parse":                     {"p/b.cue", "package p\nx: {\n", "p/a.cue", true},
		"the package names it":                           {"p/b.cue", "package p\napp: y\n", "q/a.cue", true},
		"the package adds strings":                       {"p/b.cue", "package p\nx: y + \"b\"\n", "q/a.cue", true},
		"the package interpolates":                       {"p/b.cue", "package p\nx: \"\\(y)\"\n", "q/a.cue", true},
		"the package multiplies strings":                 {"p/b.cue", "package p\nx: y\nz: 2*\"ap\"\n", "q/a.cue", true},
		"the package has a default, which computes none": {"p/b.cue", "package p\nx: y\nz: *\"ap\" | \"b\"\n", "q/a.cue", false},
		"the package embeds a file":                      {"p/b.cue", "@extern(embed)\npackage p\nx: y\nz: _ @embed(file=z.json)\n", "q/a.cue", true},
		"the package imports what may compute":           {"p/b.cue", "package p\nimport (\n\t\"skep.dev/schemas\"\n\t\"strings\"\n)\nx: y\n", "q/a.cue", true},
		"the package imports the schema only":            {"p/b.cue", "package p\nimport \"skep.dev/schemas\"\nx: schemas.#No\n", "q/a.cue", false},
		"the package's renderer dies":                    {"p/b.cue", loop, "p/a.cue", true},
		"nothing is known of where it was":               {"b.yaml", "skep.dev/: [", "", true},
		"a file cannot be opened, and it was in it":      {"b.yaml", link, "b.yaml", true},
		"a file cannot be opened, and its own is there":  {"b.yaml", link, "good.yaml", false},
		"a file cannot be opened, and its own is gone":   {"b.yaml", link, "a.yaml", true},
		"a file cannot be opened that CUE may embed":     {"b.yaml", link, "p/a.cue", true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := source(t, "-- good.yaml --\n"+good+"-- p/README --\n")
			if c.broken == link {
				if err := os.Symlink("good.yaml", filepath.Join(dir, c.file)); err != nil {
					t.Fatal(err)
				}
			} else {
				write(t, filepath.Join(dir, c.file), c.broken)
			}
			d := load(t, schemas.Options{Root: dir, Timeout: 5 * time.Second})
			id := v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}
			if got := d.MayHide(id, c.place); got != c.hides {
				t.Errorf("MayHide(%s) is %v: %v", c.place, got, d.Problems)
			}
			if len(d.Problems) == 0 || len(d.Applications) != 1 {
				t.Errorf("%v, problems %v", names(d), d.Problems)
			}
		})
	}
}

func TestWhatATemplateElsewhereMadeBelongsToThePackage(t *testing.T) {
	d := load(t, schemas.Options{Root: source(t, `
-- cue.mod/module.cue --
module: "example.com/x@v0"
language: version: "v0.14.0"
-- apps/a.cue --
package apps

import "example.com/x/lib"

lib.apps
-- lib/lib.cue --
package lib

import "skep.dev/schemas"

apps: a: schemas.#ClusterBpfApplication & {metadata: name: "a", spec: {bytecode: image: "x", programs: [{name: "f"}]}}
`), Path: "apps"})
	if len(d.Applications) != 1 || d.Applications[0].Unit != "apps" {
		t.Errorf("%+v, %v", d.Applications, d.Problems)
	}
}

func TestLocate(t *testing.T) {
	dir := source(t, "-- mod/cue.mod/module.cue --\n-- mod/a/b/c.cue --\n-- loose/d/e.yaml --\n")
	for path, want := range map[string][2]string{
		"mod/a/b":          {"mod", "a/b"},
		"mod/a/b/c.cue":    {"mod", "a/b/c.cue"},
		"mod":              {"mod", "."},
		"loose/d":          {"loose/d", "."},
		"loose/d/e.yaml":   {"loose/d", "e.yaml"},
		"loose/../mod/a/b": {"mod", "a/b"},
	} {
		root, sub, err := schemas.Locate(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(dir, root)
		if err != nil || rel != want[0] || sub != want[1] {
			t.Errorf("%s: %s, %s, %v; want %v", path, rel, sub, err, want)
		}
	}
	if _, _, err := schemas.Locate(filepath.Join(dir, "gone")); !os.IsNotExist(unwrapAll(err)) {
		t.Errorf("gone: %v", err)
	}
}

// unwrapAll is the innermost cause of an error.
func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = u.Unwrap()
	}
}

// TestUnknownFieldsAreRefusedEverywhere puts a field that no kind knows into
// every struct of every accepted definition: CUE opens a closed struct in more
// ways than one.
func TestUnknownFieldsAreRefusedEverywhere(t *testing.T) {
	free := []string{"variables", "parameters", "labels", "annotations", "matchLabels", "maps"}
	names, err := filepath.Glob("testdata/accepted/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var docs []string
	for _, name := range names {
		if filepath.Base(name) == "internal-kinds.txtar" {
			// The API server checks what is in them.
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		_, golden, _ := strings.Cut(string(data), "-- render.yaml --\n")
		if len(golden) > 4<<10 {
			// What uses a bound up has the structs of others hundreds of times.
			continue
		}
		docs = append(docs, mutate(t, golden, free)...)
	}
	if len(docs) < 100 {
		t.Fatalf("only %d definitions to try", len(docs))
	}
	for chunk := range slices.Chunk(docs, 40) {
		d := load(t, schemas.Options{Root: source(t, "-- a.yaml --\n"+strings.Join(chunk, "---\n"))})
		if len(d.Sources) != 0 || len(d.Problems) < len(chunk) {
			t.Errorf("%d of %d got through: %v", len(d.Sources), len(chunk), d.Sources)
		}
	}
}
