package bytecode

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

func TestCType(t *testing.T) {
	u64 := &btf.Int{Name: "unsigned long long", Size: 8}
	deep := btf.Type(u64)
	for range 100 {
		deep = &btf.Pointer{Target: deep}
	}
	loop := &btf.Pointer{}
	loop.Target = loop
	for want, typ := range map[string]btf.Type{
		"unsigned long long": u64,
		"__u64":              &btf.Const{Type: &btf.Volatile{Type: &btf.Typedef{Name: "__u64", Type: u64}}},
		"char *":             &btf.Pointer{Target: &btf.Const{Type: &btf.Int{Name: "char", Size: 1}}},
		"struct config":      &btf.Struct{Name: "config"},
		"struct":             &btf.Struct{},
		"union u":            &btf.Union{Name: "u"},
		"enum mode":          &btf.Volatile{Type: &btf.Enum{Name: "mode", Size: 4}},
		"struct opaque *":    &btf.Pointer{Target: &btf.Fwd{Name: "opaque"}},
		"union hidden *":     &btf.Pointer{Target: &btf.Fwd{Name: "hidden", Kind: btf.FwdUnion}},
		"function *":         &btf.Pointer{Target: &btf.FuncProto{}},
		"void *":             &btf.Pointer{Target: &btf.Void{}},
		"__u64[4][2]":        &btf.Array{Nelems: 4, Type: &btf.Array{Nelems: 2, Type: &btf.Typedef{Name: "__u64", Type: u64}}},
		"int *[3]":           &btf.Array{Nelems: 3, Type: &btf.Pointer{Target: &btf.TypeTag{Type: &btf.Int{Name: "int", Size: 4}, Value: "user"}}},
		"double":             &btf.Restrict{Type: &btf.Float{Name: "double", Size: 8}},
	} {
		if got := cType(typ, 0); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, endless := range []btf.Type{deep, loop} {
		if got := cType(endless, 0); !strings.HasPrefix(got, "…") || len(got) > 64 {
			t.Errorf("a type without end is spelled %q", got)
		}
	}
}
