package bytecode

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// chain is a type that reaches that many others.
func chain(length int) btf.Type {
	t := btf.Type(&btf.Int{Name: "int", Size: 4})
	for i := range length {
		t = &btf.Struct{Name: fmt.Sprintf("s%d", i), Size: 8, Members: []btf.Member{{Name: "next", Type: &btf.Pointer{Target: t}}}}
	}
	return t
}

// dataOf is raw BTF of a data section with that many variables of a type.
func dataOf(t *testing.T, variables int, kind btf.Type) []byte {
	t.Helper()
	section := &btf.Datasec{Name: ".data", Size: uint32(8 * variables)}
	for i := range variables {
		v := &btf.Var{Name: fmt.Sprintf("v%d", i), Type: kind, Linkage: btf.GlobalVar}
		section.Vars = append(section.Vars, btf.VarSecinfo{Type: v, Offset: uint32(8 * i), Size: 8})
	}
	builder, err := btf.NewBuilder([]btf.Type{section}, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := builder.Marshal(nil, btf.KernelMarshalOptions())
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestTypesThatMultiply(t *testing.T) {
	if err := checkTypes(dataOf(t, 100, chain(1000))); err != nil {
		t.Errorf("a hundred variables of a large type: %v", err)
	}
	err := checkTypes(dataOf(t, 1000, chain(1000)))
	var r *Rejection
	if !errors.As(err, &r) || r.Rule != "bytecode/too-many-types" {
		t.Errorf("got %v; the parser would copy two million types for a few kilobytes", err)
	}
}

func TestEveryKindOfTypeCounts(t *testing.T) {
	leaf := func() btf.Type { return &btf.Int{Name: "int", Size: 4} }
	for want, kind := range map[int]btf.Type{
		1: leaf(),
		2: &btf.Pointer{Target: leaf()},
		3: &btf.Array{Index: leaf(), Type: leaf(), Nelems: 2},
		4: &btf.FuncProto{Return: leaf(), Params: []btf.FuncParam{{Type: leaf()}, {Type: leaf()}}},
		5: &btf.Union{Members: []btf.Member{{Type: leaf()}, {Type: leaf()}, {Type: leaf()}, {Type: leaf()}}},
		8: &btf.Const{Type: &btf.Volatile{
			Type: &btf.Restrict{Type: &btf.Typedef{Name: "t", Type: &btf.TypeTag{Type: &btf.Func{Type: &btf.FuncProto{Return: leaf()}}}}},
		}},
		21: chain(10),
	} {
		section := &btf.Datasec{Vars: []btf.VarSecinfo{{Type: &btf.Var{Type: kind}}, {Type: &btf.Var{Type: kind}}}}
		if got := copies(section, 1000); got != 2*(want+1) {
			t.Errorf("two variables of %v reach %d types, want %d", kind, got, 2*(want+1))
		}
	}
	loop := &btf.Pointer{}
	loop.Target = loop
	if got := copies(&btf.Datasec{Vars: []btf.VarSecinfo{{Type: loop}}}, 1000); got != 1 {
		t.Errorf("a type that contains itself counts %d times", got)
	}
}

func TestBrokenTypesAreFoundEachTime(t *testing.T) {
	whole := dataOf(t, 2, chain(3))
	if err := checkTypes(whole); err != nil {
		t.Fatal(err)
	}
	broken := 0
	for at := 24; at < len(whole); at += 4 {
		object := bytes.Clone(whole)
		copy(object[at:], []byte{0xff, 0xff, 0xff, 0x00})
		first := checkTypes(object)
		for range 5 {
			if again := checkTypes(object); (first == nil) != (again == nil) {
				t.Fatalf("damage at %d: %v, then %v", at, first, again)
			}
		}
		if first != nil {
			broken++
		}
	}
	if broken == 0 {
		t.Error("no damage was found")
	}
}
