package bytecode

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// maxTypeDepth bounds how far a type's name is spelled out: BTF may nest
// pointers and arrays without end, and no reader wants more.
const maxTypeDepth = 8

// cType spells a type as C does, without qualifiers: they tell how the program
// uses a variable, not what can be written into it. What has no name, or nests
// too deep, reads as its kind.
func cType(t btf.Type, depth int) string {
	if depth > maxTypeDepth {
		return "…"
	}
	switch t := t.(type) {
	case *btf.Const, *btf.Volatile, *btf.Restrict, *btf.TypeTag:
		return cType(modified(t), depth+1)
	case *btf.Pointer:
		return cType(t.Target, depth+1) + " *"
	case *btf.Array:
		// C writes the outermost dimension first: __u64[4][2].
		element, inner, nested := strings.Cut(cType(t.Type, depth+1), "[")
		if nested {
			inner = "[" + inner
		}
		return fmt.Sprintf("%s[%d]%s", element, t.Nelems, inner)
	case *btf.Struct:
		return tagged("struct", t.Name)
	case *btf.Union:
		return tagged("union", t.Name)
	case *btf.Enum:
		return tagged("enum", t.Name)
	case *btf.Fwd:
		return tagged(t.Kind.String(), t.Name)
	case *btf.FuncProto:
		return "function"
	case *btf.Void, nil:
		return "void"
	default:
		return t.TypeName()
	}
}

// tagged joins a keyword and a tag; a type without a tag is anonymous.
func tagged(keyword, name string) string {
	if name == "" {
		return keyword
	}
	return keyword + " " + name
}
