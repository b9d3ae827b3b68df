package usdt

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
)

// typesIn are types as an object has them.
func typesIn(t *testing.T, all ...btf.Type) *btf.Spec {
	t.Helper()
	b, err := btf.NewBuilder(all, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestASpecIsWrittenAsItsObjectReadsIt(t *testing.T) {
	s, err := Parse(elf.EM_X86_64, "-4@-16(%rbp) 8@$5 1@-2(%rdx,%rax,8)")
	if err != nil {
		t.Fatal(err)
	}
	// struct __bpf_usdt_arg_spec three times, and what follows twelve of them.
	want := make([]byte, 208)
	copy(want, unhex(t, "f0ffffffffffffff 02000000 2000 01 20"+"0500000000000000 00000000 0000 00 00"+"feffffffffffffff 03000000 6000 00 38"))
	binary.LittleEndian.PutUint16(want[200:], 3)
	body, err := os.ReadFile("../../../test/fixture/world/testdata/usdt.o")
	if err != nil {
		t.Fatal(err)
	}
	object, err := btf.LoadSpecFromReader(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for sentence, types := range map[string]*btf.Spec{"without types": nil, "of libbpf before 1.7": object} {
		got, err := s.Encode(types)
		if diff := cmp.Diff(hex.Dump(want), hex.Dump(got)); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", sentence, err, diff)
		}
	}
	// libbpf 1.7 has the index and its scale in bits of what was the type.
	newer := layout()
	argument := newer.Members[0].Type.(*btf.Array).Type.(*btf.Struct)
	word := &btf.Int{Name: "unsigned int", Size: 4}
	newer.Members[0].Type.(*btf.Array).Index = word
	argument.Members[1] = btf.Member{Name: "arg_type", Type: word, Offset: 64, BitfieldSize: 8}
	argument.Members = append(argument.Members, btf.Member{Name: "idx_reg_off", Type: word, Offset: 72, BitfieldSize: 12}, btf.Member{
		Name: "scale_bitshift", Type: word, Offset: 84, BitfieldSize: 4,
	})
	copy(want[2*16+8:], unhex(t, "03503000"))
	got, err := s.Encode(typesIn(t, newer))
	if diff := cmp.Diff(hex.Dump(want), hex.Dump(got)); err != nil || diff != "" {
		t.Errorf("of libbpf 1.7: %v (-want +got):\n%s", err, diff)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestATypeThatIsNotThatOfLibbpfIsAnError(t *testing.T) {
	s, err := Parse(elf.EM_X86_64, "8@$5")
	if err != nil {
		t.Fatal(err)
	}
	word := &btf.Int{Name: "unsigned int", Size: 4}
	for sentence, change := range map[string]func(spec, argument *btf.Struct){
		"another name":         func(spec, _ *btf.Struct) { spec.Name = "other" },
		"no arguments":         func(spec, _ *btf.Struct) { spec.Members[0].Name = "other" },
		"arguments of numbers": func(spec, _ *btf.Struct) { spec.Members[0].Type = word },
		"too few arguments":    func(spec, _ *btf.Struct) { spec.Members[0].Type.(*btf.Array).Nelems = 0 },
		"too many arguments":   func(spec, _ *btf.Struct) { spec.Members[0].Type.(*btf.Array).Nelems = 1 << 30 },
		"a size without bound": func(spec, _ *btf.Struct) { spec.Size = 1 << 31 },
		"a member outside":     func(spec, _ *btf.Struct) { spec.Members[2].Offset = 1 << 20 },
		"no register":          func(_, argument *btf.Struct) { argument.Members[2].Name = "other" },
	} {
		spec := layout()
		array := spec.Members[0].Type.(*btf.Array)
		array.Index = word
		change(spec, array.Type.(*btf.Struct))
		if got, err := s.Encode(typesIn(t, spec)); err == nil {
			t.Errorf("%s: %x", sentence, got)
		}
	}
}
