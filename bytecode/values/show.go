package values

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"

	"github.com/cilium/ebpf/btf"
)

// Show returns what a person reads for bytes of a type, as a value that encoding/json writes: numbers,
// text for arrays of char up to the first zero byte, lists, and objects for structs and sections of variables. What has no such
// form (pointers, unions, bit fields, types that are not known) is the hex digits of its bytes. Unlike
// what Decode returns, it need not make the same bytes again.
func Show(t btf.Type, order binary.ByteOrder, b []byte) any {
	return showValue(t, order, b, maxTypeDepth)
}

func showValue(t btf.Type, order binary.ByteOrder, b []byte, depth int) any {
	if t == nil || depth == 0 {
		return hex.EncodeToString(b)
	}
	size, err := btf.Sizeof(t)
	if err != nil || size != len(b) || size == 0 {
		return hex.EncodeToString(b)
	}
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Int, *btf.Enum:
		if value, err := decode(t, order, b, depth); err == nil {
			return value
		}
	case *btf.Array:
		if isChar(t.Type) {
			text, _, _ := bytes.Cut(b, []byte{0})
			return string(text)
		}
		list := make([]any, 0, t.Nelems)
		for element := range slices.Chunk(b, size/int(t.Nelems)) {
			list = append(list, showValue(t.Type, order, element, depth-1))
		}
		return list
	case *btf.Struct:
		return showStruct(t, order, b, depth)
	case *btf.Datasec:
		variables := map[string]any{}
		for _, v := range t.Vars {
			if one, is := v.Type.(*btf.Var); is && int(v.Offset+v.Size) <= len(b) {
				variables[one.Name] = showValue(one.Type, order, b[v.Offset:v.Offset+v.Size], depth-1)
			}
		}
		return variables
	}
	return hex.EncodeToString(b)
}

func showStruct(t *btf.Struct, order binary.ByteOrder, b []byte, depth int) any {
	fields, end := map[string]any{}, 0
	for _, m := range t.Members {
		size, err := btf.Sizeof(m.Type)
		from := int(m.Offset.Bytes())
		// BTF is the object's to say: of members that share bytes, those of members of members have more values than there is memory.
		if err != nil || m.BitfieldSize > 0 || from+size > len(b) || from < end {
			return hex.EncodeToString(b)
		}
		if size == 0 {
			continue
		}
		end = from + size
		value := showValue(m.Type, order, b[from:from+size], depth-1)
		if inner, isStruct := value.(map[string]any); isStruct && m.Name == "" {
			maps.Copy(fields, inner)
			continue
		}
		name := m.Name
		if name == "" {
			name = "(no name)"
		}
		fields[name] = value
	}
	return fields
}
