package bytecode

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

func TestMapsOfUnknownMapsAreDenied(t *testing.T) {
	object := referring(t, "maps")
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(object[f.Section("maps").Offset:], uint32(ebpf.HashOfMaps))
	if r := refusal(t, object); r.Rule != "bytecode/inner-map" || r.Object != `map "m"` || !strings.Contains(r.Fix, "__array(values,") {
		t.Errorf("refused by %s: %s: %s; %s", r.Rule, r.Object, r.Reason, r.Fix)
	}
}

// TestATypeThatTheCompilerLeftOutIsDenied: the values of the maps in the map are of a struct that
// is only declared.
func TestATypeThatTheCompilerLeftOutIsDenied(t *testing.T) {
	number := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	pointer := func(to btf.Type) btf.Type { return &btf.Pointer{Target: to} }
	size := func(n uint32) btf.Type { return pointer(&btf.Array{Index: number, Type: number, Nelems: n}) }
	definition := func(fields ...btf.Member) *btf.Struct {
		for i := range fields {
			fields[i].Offset = btf.Bits(64 * i)
		}
		return &btf.Struct{Size: uint32(8 * len(fields)), Members: fields}
	}
	inner := definition(btf.Member{Name: "type", Type: size(uint32(ebpf.Hash))}, btf.Member{Name: "max_entries", Type: size(1)},
		btf.Member{Name: "key", Type: pointer(number)}, btf.Member{Name: "value", Type: pointer(&btf.Fwd{Name: "data_t"})})
	outer := definition(btf.Member{Name: "type", Type: size(uint32(ebpf.ArrayOfMaps))}, btf.Member{Name: "max_entries", Type: size(1)},
		btf.Member{Name: "key", Type: pointer(number)}, btf.Member{Name: "values", Type: &btf.Array{Index: number, Type: pointer(inner)}})
	// The array has no elements, and is not counted.
	outer.Size -= 8
	maps := &btf.Datasec{Name: ".maps", Size: outer.Size,
		Vars: []btf.VarSecinfo{{Type: &btf.Var{Name: "m", Type: outer, Linkage: btf.GlobalVar}, Size: outer.Size}}}
	builder, err := btf.NewBuilder([]btf.Type{maps}, nil)
	if err != nil {
		t.Fatal(err)
	}
	types, err := builder.Marshal(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	table := raw(t, raw(t, nil, elf.Sym64{}), elf.Sym64{Name: 1, Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_OBJECT), Shndx: 1, Size: uint64(outer.Size)})
	r := refusal(t, assembled(t,
		section{name: ".maps", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_WRITE, data: make([]byte, outer.Size)},
		section{name: ".BTF", kind: elf.SHT_PROGBITS, data: types},
		section{name: ".symtab", kind: elf.SHT_SYMTAB, data: table, link: 4, info: 1, entry: elf.Sym64Size},
		section{name: ".strtab", kind: elf.SHT_STRTAB, data: []byte("\x00m\x00")}))
	if r.Rule != "bytecode/type-without-size" || !strings.Contains(r.Reason, "map m: ") || !strings.Contains(r.Fix, "declare a variable of the type") {
		t.Errorf("refused by %s: %s: %s; %s", r.Rule, r.Object, r.Reason, r.Fix)
	}
}
