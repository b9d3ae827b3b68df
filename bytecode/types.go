package bytecode

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/bytecode/layout"
	"github.com/skep-dev/skep/bytecode/plain"
)

// maxTypeCopies bounds how many types the parser copies for the variables:
// each variable gets its own copy of every type it reaches.
const maxTypeCopies = 1 << 20

// textNoType is how the library says that an object has no type of that id. A type that
// refers to none is btf.ErrNotFound as well.
func textNoType(id btf.TypeID) string { return fmt.Sprintf("type id %d: %v", id, btf.ErrNotFound) }

// checkTypes looks at every type, in order. The parser looks only at those it
// comes across, in an order that changes from run to run, and takes a type that
// it failed on for a good one when it meets it again: broken type information
// would be noticed on some days only.
func checkTypes(object []byte) error {
	types, err := btf.LoadSpecFromReader(bytes.NewReader(object))
	if errors.Is(err, btf.ErrNotFound) {
		return nil
	}
	if err != nil {
		return &parseError{fmt.Errorf("read BTF: %w; build it anew: %s", plain.Error(err), Compile)}
	}
	budget := maxTypeCopies
	for id := btf.TypeID(1); ; id++ {
		t, err := types.TypeByID(id)
		switch {
		case err == nil:
		case errors.Is(err, btf.ErrNotFound) && strings.HasSuffix(err.Error(), textNoType(id)):
			return nil // that was the last
		default:
			// A type that refers to none: Spec.All would end here in silence.
			return &parseError{fmt.Errorf("read BTF: type %d: %w", id, plain.Error(err))}
		}
		if section, ok := t.(*btf.Datasec); ok && dataSection(section.Name) {
			if budget -= copies(section, budget); budget <= 0 {
				return &Rejection{
					Rule:   "bytecode/too-many-types",
					Object: "section " + printable(section.Name),
					Reason: fmt.Sprintf("its variables reach more than %d types, each counted anew", maxTypeCopies),
					Fix:    "declare pointers to large structures as void *",
				}
			}
		}
	}
}

// checkLayouts rejects maps whose types are beyond what the agent compares when
// another object replaces this one.
func checkLayouts(spec *ebpf.CollectionSpec) error {
	layouts := layout.New()
	for _, name := range sortedKeys(spec.Maps) {
		if _, err := layouts.Map(spec.Maps[name]); err != nil {
			return &Rejection{
				Rule:   "bytecode/type-too-large",
				Object: "map " + printable(name),
				Reason: "the type of its key or value is too large to compare: " + err.Error(),
				Fix:    "declare flatter types, or an array of bytes",
			}
		}
	}
	return nil
}

// copies counts the types that the variables of a section reach, each variable
// for itself, up to a limit.
func copies(section *btf.Datasec, limit int) int {
	count := 0
	for _, v := range section.Vars {
		seen, pending := map[btf.Type]bool{}, []btf.Type{v.Type}
		for len(pending) > 0 && count <= limit {
			last := len(pending) - 1
			t := pending[last]
			if pending = pending[:last]; seen[t] {
				continue
			}
			seen[t] = true
			count++
			pending = append(pending, refersTo(t)...)
		}
	}
	return count
}

// refersTo are the types that a type is made of.
func refersTo(t btf.Type) []btf.Type {
	switch t := t.(type) {
	case *btf.Pointer:
		return []btf.Type{t.Target}
	case *btf.Array:
		return []btf.Type{t.Index, t.Type}
	case *btf.Struct:
		return memberTypes(t.Members)
	case *btf.Union:
		return memberTypes(t.Members)
	case *btf.FuncProto:
		types := []btf.Type{t.Return}
		for _, p := range t.Params {
			types = append(types, p.Type)
		}
		return types
	default:
		if inner := modified(t); inner != nil {
			return []btf.Type{inner}
		}
		return nil
	}
}

// modified is the type that a qualifier, a name or a variable stands before;
// nil for other types.
func modified(t btf.Type) btf.Type {
	switch t := t.(type) {
	case *btf.Const:
		return t.Type
	case *btf.Volatile:
		return t.Type
	case *btf.Restrict:
		return t.Type
	case *btf.TypeTag:
		return t.Type
	case *btf.Typedef:
		return t.Type
	case *btf.Var:
		return t.Type
	case *btf.Func:
		return t.Type
	}
	return nil
}

// memberTypes are the types of a structure's members.
func memberTypes(members []btf.Member) []btf.Type {
	types := make([]btf.Type, len(members))
	for i, m := range members {
		types[i] = m.Type
	}
	return types
}
