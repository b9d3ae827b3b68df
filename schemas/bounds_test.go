package schemas

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// bounds compares the bounds of one CRD with those of the schema, and counts
// them.
type bounds struct {
	t    *testing.T
	s    *scope
	kind string
	n    int
}

func TestSchemaHasTheBoundsOfTheCRDs(t *testing.T) {
	s := newTestScope(t)
	n := 0
	for _, kind := range kinds {
		b := &bounds{t: t, s: s, kind: kind}
		spec := crd(t, kind).Properties["spec"]
		b.compare([]string{"spec"}, &spec)
		n += b.n
	}
	if n < 60 {
		t.Errorf("only %d bounds were looked at", n)
	}
}

// crd is the schema of the one version of a kind.
func crd(t *testing.T, kind string) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	names, err := filepath.Glob("../charts/skep/files/crds/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var def apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(data, &def); err != nil {
			t.Fatal(err)
		}
		if def.Spec.Names.Kind == kind {
			return def.Spec.Versions[0].Schema.OpenAPIV3Schema
		}
	}
	t.Fatalf("there is no CRD of %s", kind)
	return nil
}

// compare tries every bound of the CRD at a path and below it. In a path, 0 is
// the element of a list, and k that of a map.
func (b *bounds) compare(path []string, props *apiextensionsv1.JSONSchemaProps) {
	for _, bound := range []struct {
		most, least *int64
		value       func(int64) []string
	}{
		{props.MaxLength, props.MinLength, texts},
		{props.MaxItems, props.MinItems, lists},
		{props.MaxProperties, props.MinProperties, structs},
		{whole(props.Maximum), whole(props.Minimum), numbers},
	} {
		b.check(path, bound.value, bound.most, 1)
		b.check(path, bound.value, bound.least, -1)
	}
	if props.Format == "int32" && props.Maximum == nil {
		b.t.Errorf("%s: %s: an int32 needs a maximum: API servers of 1.30 look at no format", b.kind, dotted(path))
	}
	for name, sub := range props.Properties {
		b.compare(append(slices.Clip(path), name), &sub)
	}
	if props.Items != nil {
		b.compare(append(slices.Clip(path), "0"), props.Items.Schema)
	}
	if props.AdditionalProperties != nil && props.AdditionalProperties.Schema != nil {
		b.compare(append(slices.Clip(path), "k"), props.AdditionalProperties.Schema)
	}
}

// check has the schema accept one of the values at the bound, and reject all of
// those one step beyond.
func (b *bounds) check(path []string, value func(int64) []string, bound *int64, step int64) {
	b.t.Helper()
	if bound == nil {
		return
	}
	b.n++
	accepted := func(n int64) bool {
		for _, v := range value(n) {
			if !b.refuses(path, v) {
				return true
			}
		}
		return false
	}
	if !accepted(*bound) || accepted(*bound+step) {
		b.t.Errorf("%s: %s: the CRD's bound is %d, and of that and %d the schema accepts %v and %v",
			b.kind, dotted(path), *bound, *bound+step, accepted(*bound), accepted(*bound+step))
	}
}

// rejects reports whether the schema finds fault with a value at that path, or
// with what is in it.
func (b *bounds) refuses(path []string, value string) bool {
	b.t.Helper()
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == "0" {
			value = "[" + value + "]"
		} else {
			value = "{" + path[i] + ": " + value + "}"
		}
	}
	v := b.s.ctx.CompileString(value)
	if v.Err() != nil {
		b.t.Fatal(v.Err())
	}
	def := b.s.schema.LookupPath(cue.MakePath(cue.Def(b.kind)))
	for _, e := range errors.Errors(def.Unify(v).Validate()) {
		at := e.Path()
		if len(at) > 0 && strings.HasPrefix(at[0], "#") {
			at = at[1:]
		}
		if strings.HasPrefix(dotted(visible(at)), dotted(path)) {
			return true
		}
	}
	return false
}

// texts are a word, a number, a path and a repository of so many characters.
func texts(n int64) []string {
	return []string{
		strconv.Quote(strings.Repeat("a", int(n))),
		strconv.Quote(strings.Repeat("1", int(n))),
		strconv.Quote(("/" + strings.Repeat("a", int(n)))[:n]),
		strconv.Quote(("a/" + strings.Repeat("a", int(n)))[:n]),
	}
}

// lists are of so many elements that are anything, that are a signer's identities, and
// that are claims, of which each is given once.
func lists(n int64) []string {
	names := []string{
		"buildSignerURI", "buildSignerDigest", "runnerEnvironment", "sourceRepositoryURI", "sourceRepositoryDigest", "sourceRepositoryRef",
		"sourceRepositoryIdentifier", "sourceRepositoryOwnerURI", "sourceRepositoryOwnerIdentifier", "buildConfigURI", "buildConfigDigest",
		"buildTrigger", "runInvocationURI", "sourceRepositoryVisibilityAtSigning", "githubWorkflowTrigger", "githubWorkflowSHA",
		"githubWorkflowName", "githubWorkflowRepository", "githubWorkflowRef",
	}
	var claims strings.Builder
	for i := range n {
		fmt.Fprintf(&claims, "{name: %q, value: \"v\"}, ", names[i%int64(len(names))])
	}
	return []string{
		"[" + claims.String() + "]",
		"[" + strings.Repeat("_, ", int(n)) + "]",
		"[" + strings.Repeat(`{issuer: "i", subject: "s"}, `, int(n)) + "]",
	}
}

// structs have so many fields that are anything, of any name and as an entry of a map
// begins.
func structs(n int64) []string {
	var all, entry strings.Builder
	for i := range n {
		fmt.Fprintf(&all, "k%d: _, ", i)
		fmt.Fprintf(&entry, "%s: _, ", append([]string{"key", "value"}, fmt.Sprintf("k%d", i))[min(i, 2)])
	}
	return []string{"{" + all.String() + "}", "{" + entry.String() + "}"}
}

// numbers are the number itself.
func numbers(n int64) []string { return []string{strconv.FormatInt(n, 10)} }

// whole is a bound that the CRDs hold as a float.
func whole(f *float64) *int64 {
	if f == nil {
		return nil
	}
	n := int64(*f)
	return &n
}
