package objectfile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// KsymSection is the section of type information that lists what an object takes from the
// kernel by name: functions and variables.
const KsymSection = ".ksyms"

// The kinds of types, as linux/btf.h numbers them.
const (
	kindInt = iota + 1
	kindPointer
	kindArray
	kindStruct
	kindUnion
	kindEnum
	_ // forward declaration
	kindTypedef
	kindVolatile
	kindConst
	kindRestrict
	_ // function
	kindPrototype
	kindVar
	kindSection
	_ // float
	kindTag
	kindTypeTag
	kindEnum64
)

// record is a type in the section .BTF: where it begins there, and its header.
type record struct {
	at               int
	name, info, size uint32
}

// recordSize is the size of a header, and sizeAt is where it has its third field: the size
// of a type, or the type that it refers to.
const (
	recordSize = 12
	sizeAt     = 8
)

func (r record) kind() uint32 { return r.info >> 24 & 0x1f }

// members are what follows a header, in bytes.
func (r record) members() int {
	many := int(r.info & 0xffff)
	switch r.kind() {
	case kindInt, kindVar, kindTag:
		return 4
	case kindArray:
		return 12
	case kindEnum, kindPrototype:
		return 8 * many
	case kindStruct, kindUnion, kindSection, kindEnum64:
		return 12 * many
	}
	return 0
}

// typeInformation is the section .BTF of a file. The library has no writer for a section of
// a file, and what is changed here keeps its size.
type typeInformation struct {
	data    []byte
	order   binary.ByteOrder
	strings []byte
	// records are the types by their numbers; the first is void.
	records []record
}

// readTypes reads the headers of all types. What is no type information has none: the
// library says what is wrong with it.
func readTypes(f *elf.File, file []byte) *typeInformation {
	t := &typeInformation{order: f.ByteOrder, records: []record{{}}}
	s := f.Section(".BTF")
	if s == nil || s.Flags&elf.SHF_COMPRESSED != 0 || s.Offset > uint64(len(file)) || s.FileSize > uint64(len(file))-s.Offset || s.FileSize < 24 {
		return t
	}
	t.data = file[s.Offset : s.Offset+s.FileSize]
	field := func(at int) uint64 { return uint64(t.order.Uint32(t.data[at:])) }
	header, all := field(4), uint64(len(t.data))
	begin, end := header+field(8), header+field(8)+field(12)
	names, after := header+field(16), header+field(16)+field(20)
	if end > all || after > all {
		return t
	}
	t.strings = t.data[names:after]
	for at := int(begin); at+recordSize <= int(end); {
		r := record{at, t.order.Uint32(t.data[at:]), t.order.Uint32(t.data[at+4:]), t.order.Uint32(t.data[at+sizeAt:])}
		if at += recordSize + r.members(); at > int(end) {
			break
		}
		t.records = append(t.records, r)
	}
	return t
}

func (t *typeInformation) nameOf(r record) string {
	if uint64(r.name) >= uint64(len(t.strings)) {
		return ""
	}
	name, _, _ := bytes.Cut(t.strings[r.name:], []byte{0})
	return string(name)
}

// isNamed compares a name without reading more of it than the other one has.
func (t *typeInformation) isNamed(at uint32, name string) bool {
	if uint64(at)+uint64(len(name)) >= uint64(len(t.strings)) {
		return false
	}
	found := t.strings[at:]
	return string(found[:len(name)]) == name && found[len(name)] == 0
}

// maxQualifiers is how many names and qualifiers are looked behind.
const maxQualifiers = 32

// behind is what a type is behind names and qualifiers.
func (t *typeInformation) behind(id uint32) uint32 {
	for range maxQualifiers {
		if id == 0 || id >= uint32(len(t.records)) {
			return id
		}
		switch r := t.records[id]; r.kind() {
		case kindTypedef, kindVolatile, kindConst, kindRestrict, kindTypeTag:
			id = r.size
		default:
			return id
		}
	}
	return id
}

// variablesOf are the variables that a section lists.
func (t *typeInformation) variablesOf(name string) []uint32 {
	var all []uint32
	for _, section := range t.records {
		if section.kind() != kindSection || !t.isNamed(section.name, name) {
			continue
		}
		for at := section.at + recordSize; at < section.at+recordSize+section.members(); at += 12 {
			id := t.order.Uint32(t.data[at:])
			if id < uint32(len(t.records)) && t.records[id].kind() == kindVar {
				all = append(all, id)
			}
		}
	}
	return all
}

// kernelVariables are the variables that the object takes from the kernel, and whether each
// has a type.
func (t *typeInformation) kernelVariables() map[uint32]bool {
	found := map[uint32]bool{}
	for _, id := range t.variablesOf(KsymSection) {
		found[id] = t.behind(t.records[id].size) != 0
	}
	return found
}

// untype gives void to the variables that the object takes from the kernel, which is all
// that the library knows, and notes those that had a type: a program has them as pointers
// that the verifier knows.
func (b *Bound) untype(f *elf.File) {
	types := readTypes(f, b.File)
	for id, typed := range types.kernelVariables() {
		r := types.records[id]
		if typed {
			b.typed[types.nameOf(r)] = false
		}
		if r.size == 0 {
			continue
		}
		if !b.Changed {
			b.change()
			types.data = readTypes(f, b.File).data
		}
		types.order.PutUint32(types.data[r.at+sizeAt:], 0)
	}
}
