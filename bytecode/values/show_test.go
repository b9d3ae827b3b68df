package values_test

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/bytecode/values"
)

// TestMembersThatShareBytesAreShownOnce has structs whose members are all at their beginning, and have such members: each further level would
// have four times as many values.
func TestMembersThatShareBytesAreShownOnce(t *testing.T) {
	var of btf.Type = &btf.Int{Name: "char", Size: 1, Encoding: btf.Char}
	for range 8 {
		s := &btf.Struct{Size: 1}
		for _, name := range []string{"a", "b", "c", "d"} {
			s.Members = append(s.Members, btf.Member{Name: name, Type: of})
		}
		of = s
	}
	honest := &btf.Struct{Size: 2, Members: []btf.Member{{Name: "shared", Type: of}, {Name: "own", Type: &btf.Int{Size: 1}, Offset: 8}}}
	want := map[string]any{"shared": "07", "own": int64(9)}
	if diff := cmp.Diff(want, values.Show(honest, binary.LittleEndian, []byte{7, 9})); diff != "" {
		t.Errorf("(-want +got):\n%.1000s", diff)
	}
}
