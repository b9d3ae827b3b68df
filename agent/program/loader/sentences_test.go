package loader

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/jargon"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestWhatCannotBeLoadedIsNamedInPlainWords: each sentence names the object and the map, program or variable.
func TestWhatCannotBeLoadedIsNamedInPlainWords(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		change func(m *ebpf.MapSpec)
		want   string
	}{
		"values beyond the kernel's":   {func(m *ebpf.MapSpec) { m.Value, m.ValueSize, m.MaxEntries = nil, 1<<31, 1 }, "argument list too long; give the map fewer"},
		"keys of another size":         {func(m *ebpf.MapSpec) { m.Key, m.KeySize = nil, 8 }, "invalid argument; compare its key_size"},
		"no entries":                   {func(m *ebpf.MapSpec) { m.MaxEntries = 0 }, "max_entries may be 0"},
		"contents that do not fit":     {func(m *ebpf.MapSpec) { m.Contents = []ebpf.MapKV{{Key: uint32(0), Value: uint8(1)}} }, "bytes"},
		"a perf event array with keys": {func(m *ebpf.MapSpec) { m.Type, m.KeySize = ebpf.PerfEventArray, 8 }, "key_size must be zero or four"},
		"a map of maps without one":    {func(m *ebpf.MapSpec) { m.Type, m.ValueSize = ebpf.ArrayOfMaps, 4 }, "an inner map"},
		"flags that no kernel has":     {func(m *ebpf.MapSpec) { m.Flags = 1 << 30 }, "the flag 0x40000000"},
		"a flag of other types":        {func(m *ebpf.MapSpec) { m.Type, m.Flags = ebpf.Array, unix.BPF_F_NO_PREALLOC }, "invalid argument"},
	} {
		p, err := Prepare(opened(t, intent.Payload{Programs: program("xdp_big_map", "xdp", "")}), programs.Object("xdp_big_map"))
		if err != nil {
			t.Fatalf("%s: %v", sentence, err)
		}
		for _, m := range p.Spec.Maps {
			m.MaxEntries = 1
		}
		c.change(p.Spec.Maps["big"])
		r, _, err := Load(p, nil, nil, nil)
		if err == nil {
			t.Errorf("%s: it is loaded: %v", sentence, r.Close())
			continue
		}
		for _, want := range []string{"load net/app", "map big", c.want} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q, want %q", sentence, err, want)
			}
		}
		if word := jargon.In(err.Error()); word != "" {
			t.Errorf("%s: %q has %q", sentence, err, word)
		}
	}
}

// TestAnObjectThatCannotBePreparedIsNamedInPlainWords: of objects that the gate never saw, too.
func TestAnObjectThatCannotBePreparedIsNamedInPlainWords(t *testing.T) {
	whole := programs.Object("xdp_variables")
	for sentence, c := range map[string]struct {
		object    []byte
		variables map[string]apiextensionsv1.JSON
		want      string
	}{
		"cut short":             {whole[:len(whole)/2], nil, "net/app"},
		"a few bytes":           {whole[:20], nil, "net/app"},
		"a variable it has not": {whole, map[string]apiextensionsv1.JSON{"none": {Raw: []byte("1")}}, "none"},
		"a value that is none":  {whole, map[string]apiextensionsv1.JSON{"a_u8": {Raw: []byte("256")}}, "a_u8"},
	} {
		_, err := Prepare(opened(t, intent.Payload{Variables: c.variables, Programs: program("reads_all", "xdp", "")}), c.object)
		if err == nil {
			t.Errorf("%s: it is prepared", sentence)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || jargon.In(err.Error()) != "" {
			t.Errorf("%s: %q, want %q, and no %q", sentence, err, c.want, jargon.In(err.Error()))
		}
	}
}
