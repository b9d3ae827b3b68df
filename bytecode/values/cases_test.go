package values_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/tools/txtar"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/values"
	"github.com/skep-dev/skep/test/harness/golden"
)

// TestCases sets what each case says, and compares the bytes or the denials. The comment of
// a case ends with the name of its object.
func TestCases(t *testing.T) {
	golden.Cases(t, "testdata/*.txtar", func(t *testing.T, ar *txtar.Archive) []txtar.File {
		lines := strings.Split(strings.TrimSpace(string(ar.Comment)), "\n")
		var definition v1alpha1.BpfApplicationSpec
		if err := yaml.UnmarshalStrict(ar.Files[0].Data, &definition); err != nil {
			t.Fatal(err)
		}
		spec := object(t, strings.TrimPrefix(lines[len(lines)-1], "object: "))
		return []txtar.File{golden.Part("want", outcome(spec, definition))}
	})
}

// outcome is what became of the definition's variables and contents, a line each.
func outcome(spec *ebpf.CollectionSpec, definition v1alpha1.BpfApplicationSpec) string {
	var b strings.Builder
	if err := values.Apply(spec, definition.Variables); err != nil {
		fmt.Fprintln(&b, err)
	}
	for _, name := range slices.Sorted(maps.Keys(definition.Variables)) {
		if v := spec.Variables[name]; v != nil {
			fmt.Fprintf(&b, "%s = % x\n", name, v.Value)
		}
	}
	for name, m := range definition.Maps {
		if spec.Maps[name] != nil {
			values.Resize(spec.Maps[name], m)
		}
	}
	misfits := values.Contents(spec, definition.Maps)
	for _, misfit := range misfits {
		fmt.Fprintln(&b, misfit)
	}
	for _, name := range slices.Sorted(maps.Keys(definition.Maps)) {
		if spec.Maps[name] == nil || len(misfits) > 0 {
			continue
		}
		for _, kv := range spec.Maps[name].Contents {
			fmt.Fprintf(&b, "%s: %s = %s\n", name, entryText(kv.Key), entryText(kv.Value))
		}
	}
	return b.String()
}

func entryText(v any) string {
	if raw, ok := v.([]byte); ok {
		return fmt.Sprintf("% x", raw)
	}
	return fmt.Sprint(v)
}

func TestContentsOfGreatValuesAreBounded(t *testing.T) {
	spec := object(t, "xdp_contents")
	size := uint32(2 << 20)
	entry := func(key, value string) v1alpha1.MapEntry {
		return v1alpha1.MapEntry{Key: apiextensionsv1.JSON{Raw: []byte(key)}, Value: apiextensionsv1.JSON{Raw: []byte(value)}}
	}
	spec.Maps["limits"].ValueSize = size
	for i := range 3 {
		maps := map[string]v1alpha1.Map{"limits": {}}
		for k := range i + 1 {
			m := maps["limits"]
			m.Contents = append(m.Contents, entry(fmt.Sprintf(`{"port":%d}`, k), `{}`))
			maps["limits"] = m
		}
		all := values.Contents(spec, maps)
		if bounded := slices.ContainsFunc(all, func(e *values.FieldError) bool { return strings.Contains(e.Reason, "may have 4194304 bytes") }); bounded != (i >= 1) {
			t.Errorf("%d values of 2 MiB: %v", i+1, all)
		}
	}
}
