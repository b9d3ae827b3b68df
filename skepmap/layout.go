package skepmap

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"reflect"

	"github.com/cilium/ebpf/btf"
)

// types are those of a map's keys and values; nil is one that is not known.
type types struct{ key, value btf.Type }

// readTypes reads the BTF of a map in a readers' folder.
func readTypes(dir string, info MapInfo) (types, error) {
	var t types
	if info.BTF == "" {
		return t, nil
	}
	raw, err := readFile(filepath.Join(dir, info.BTF), MaxBTF)
	if err != nil {
		return t, err
	}
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
	if err != nil {
		return t, fmt.Errorf("read %s: %w", info.BTF, err)
	}
	for _, one := range []struct {
		id   uint32
		into *btf.Type
	}{{info.KeyTypeID, &t.key}, {info.ValueTypeID, &t.value}} {
		if one.id == 0 {
			continue
		}
		if *one.into, err = spec.TypeByID(btf.TypeID(one.id)); err != nil {
			return t, fmt.Errorf("read %s: %w", info.BTF, err)
		}
	}
	return t, nil
}

// part is a number in a type: where it is, how long it is, and what it is called.
type part struct {
	offset, size int
	name, kind   string
}

// end is the byte after the part.
func (p part) end() int { return p.offset + p.size }

// mostParts bounds how many parts of a type are compared.
const mostParts = 4096

// LayoutError is the error for a Go type whose fields are at other places than those of the C type.
type LayoutError struct {
	// Type is the Go type, and Of what it was for: key or value.
	Type, Of string
	// Field is the field of the Go type, and CField the one of the C type that it does not fit.
	Field, CField string
}

// Error names both fields.
func (e *LayoutError) Error() string {
	return fmt.Sprintf("%s does not fit the map's %s: it has %s, where the BTF of the map has %s", e.Type, e.Of, e.Field, e.CField)
}

// fits compares a Go type with the BTF of a key or value: each number of the one has to be at the
// place of one of the other with its size. Names and signs do not count; arrays of bytes fit
// anything, as do unions.
func fits(v any, t btf.Type, of side) error {
	if t == nil {
		return nil
	}
	switch v.(type) {
	case encoding.BinaryMarshaler, encoding.BinaryUnmarshaler:
		return nil
	}
	goType := reflect.TypeOf(v)
	for goType != nil && goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	if goType == nil || binary.Size(reflect.Zero(goType).Interface()) < 0 {
		return nil
	}
	var mine, theirs []part
	goParts(goType, "", 0, &mine)
	cParts(t, "", 0, 0, &theirs)
	i := 0
	for _, m := range mine {
		for i < len(theirs) && theirs[i].end() <= m.offset {
			i++
		}
		if i < len(theirs) && theirs[i].offset < m.end() && (theirs[i].offset != m.offset || theirs[i].size != m.size) {
			return &LayoutError{Type: goType.String(), Of: string(of), Field: m.String(), CField: theirs[i].String()}
		}
	}
	return nil
}

// String is the part in words: packets at byte 8 with 8 bytes (unsigned long).
func (p part) String() string {
	name := p.name
	if name == "" {
		name = "a number"
	}
	return fmt.Sprintf("%s at byte %d with %d bytes (%s)", name, p.offset, p.size, p.kind)
}

// join is a field's name below another.
func join(name, field string) string {
	if name == "" || field == "" {
		return name + field
	}
	return name + "." + field
}

// goParts are the numbers of a Go type as package encoding/binary lays them out. Single bytes and
// fields named _ are left out.
func goParts(t reflect.Type, name string, offset int, into *[]part) {
	size := binary.Size(reflect.Zero(t).Interface())
	switch {
	case size <= 0 || len(*into) >= mostParts:
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			field := t.Field(i)
			if field.Name != "_" {
				goParts(field.Type, join(name, field.Name), offset, into)
			}
			offset += binary.Size(reflect.Zero(field.Type).Interface())
		}
	case t.Kind() == reflect.Array:
		if t.Elem().Size() == 1 {
			return
		}
		for i := range t.Len() {
			goParts(t.Elem(), fmt.Sprintf("%s[%d]", name, i), offset+i*size/t.Len(), into)
		}
	default:
		*into = append(*into, part{offset: offset, size: size, name: name, kind: t.String()})
	}
}

// cParts are the numbers of a C type. Arrays of bytes, bit fields and unions are left out.
func cParts(t btf.Type, name string, offset, depth int, into *[]part) {
	size, err := btf.Sizeof(t)
	if err != nil || size == 0 || len(*into) >= mostParts || depth > 32 {
		return
	}
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		for _, member := range t.Members {
			if member.BitfieldSize == 0 {
				cParts(member.Type, join(name, member.Name), offset+int(member.Offset.Bytes()), depth+1, into)
			}
		}
	case *btf.Array:
		one, err := btf.Sizeof(t.Type)
		if err != nil || one <= 1 {
			return
		}
		for i := range min(int(t.Nelems), mostParts) {
			cParts(t.Type, fmt.Sprintf("%s[%d]", name, i), offset+i*one, depth+1, into)
		}
	case *btf.Int:
		*into = append(*into, part{offset, size, name, t.Name})
	case *btf.Enum:
		*into = append(*into, part{offset, size, name, "enum " + t.Name})
	case *btf.Pointer:
		*into = append(*into, part{offset, size, name, "pointer"})
	}
}
