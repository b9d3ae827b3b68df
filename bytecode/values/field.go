package values

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Field is a part of a value: its type, and where its bytes are.
type Field struct {
	Type btf.Type
	// Offset and Size are in bytes.
	Offset, Size uint32
}

// maxPath bounds how many members a path goes through.
const maxPath = 8

// Find returns the field that a path of members leads to, with dots between; an empty path leads to all of the type. Members
// of unions, and of structs without a name, count as well. The error says which members there are.
func Find(t btf.Type, path string) (Field, error) {
	at, whole := uint64(0), t
	if path != "" {
		names := strings.SplitN(path, ".", maxPath+1)
		if len(names) > maxPath {
			return Field{}, fmt.Errorf("%q goes through more than %d members", path, maxPath)
		}
		for _, name := range names {
			m, err := memberOf(t, name)
			if err != nil {
				return Field{}, err
			}
			t, at = m.Type, at+m.at
		}
	}
	size, err := btf.Sizeof(t)
	if err != nil || size == 0 || at%8 != 0 || at/8+uint64(size) > 1<<31 {
		return Field{}, fmt.Errorf("%s has no size or place in bytes", describe(t))
	}
	// BTF is the object's to say, and need not be true.
	if all, err := btf.Sizeof(whole); err != nil || at/8+uint64(size) > uint64(all) {
		return Field{}, fmt.Errorf("the BTF of %s places %q outside of it; compile the object anew", describe(whole), path)
	}
	return Field{t, uint32(at / 8), uint32(size)}, nil
}

// memberOf returns a member of a struct or union.
func memberOf(t btf.Type, name string) (member, error) {
	var of []btf.Member
	switch u := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		of = u.Members
	case *btf.Union:
		of = u.Members
	default:
		return member{}, fmt.Errorf("%s has no members, and so no %q", describe(t), name)
	}
	for _, m := range members(of) {
		switch {
		case m.Name != name:
		case m.BitfieldSize != 0:
			return member{}, fmt.Errorf("member %q of %s is a bit field", name, describe(t))
		default:
			return m, nil
		}
	}
	return member{}, fmt.Errorf("%s has no member %q; it has %s", describe(t), name, fieldNames(of))
}

// Describe names a type as C does, near enough for a message.
func Describe(t btf.Type) string { return describe(t) }
