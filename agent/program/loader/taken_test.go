package loader

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
)

// TestDifferencesOfTwoDeclarationsAreNamed changes one thing of the declaration that takes the
// place of another one.
func TestDifferencesOfTwoDeclarationsAreNamed(t *testing.T) {
	word := func(name string) *btf.Int { return &btf.Int{Name: name, Size: 4} }
	pair := func(first, second string) *btf.Struct {
		return &btf.Struct{Name: "pair", Size: 8, Members: []btf.Member{{Name: first, Type: word("u32")}, {Name: second, Type: word("u32"), Offset: 32}}}
	}
	declare := func() *ebpf.MapSpec {
		return &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 16, Key: word("u32"), Value: pair("packets", "bytes")}
	}
	for sentence, c := range map[string]struct {
		change func(*ebpf.MapSpec)
		want   []string
	}{
		"nothing":                               {func(*ebpf.MapSpec) {}, nil},
		"the number of entries is left open":    {func(ms *ebpf.MapSpec) { ms.MaxEntries = 0 }, nil},
		"that of the object, which is replaced": {func(ms *ebpf.MapSpec) { ms.MaxEntries = 8 }, nil},
		"another number of entries":             {func(ms *ebpf.MapSpec) { ms.MaxEntries = 9 }, []string{"number of entries 9 here and 16 there"}},
		"the size of values is left open":       {func(ms *ebpf.MapSpec) { ms.ValueSize = 0 }, nil},
		"type, key and flags": {func(ms *ebpf.MapSpec) { ms.Type, ms.KeySize, ms.Flags = ebpf.Array, 8, 1 },
			[]string{"type Array here and Hash there", "key size 8 here and 4 there", "flags 1 here and 0 there"}},
		"another value size":      {func(ms *ebpf.MapSpec) { ms.ValueSize = 4 }, []string{"value size 4 here and 8 there"}},
		"two fields change place": {func(ms *ebpf.MapSpec) { ms.Value = pair("bytes", "packets") }, []string{"key or value have another layout there"}},
		"no types at all":         {func(ms *ebpf.MapSpec) { ms.Key, ms.Value = nil, nil }, []string{"key or value have another layout there"}},
	} {
		ms := declare()
		c.change(ms)
		if diff := cmp.Diff(c.want, differences(ms, declare(), 8)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", sentence, diff)
		}
	}
}
