package objectfile

import (
	"debug/elf"
	"fmt"
)

// A linker (bpftool gen object) keeps functions that several files have under one name, each static in its own. The library
// tells functions by their names alone, so all but one get a name of their own.

// Bounds of new names: how many there are, and how much of a function's name each begins with.
const (
	maxRenamed    = 1 << 14
	maxNameBefore = 128
)

// Where a section's header has the offset of the section and its size in the file.
const (
	sectionOffset = 24
	sectionSize   = 32
)

// distinguish gives local functions names that no other symbol of the file has, in a copy of the names at the end of the file. A
// file with more than maxRenamed of them, or whose names cannot be read, is left as it is: the library says what is wrong.
func (b *Bound) distinguish(f *elf.File, table *elf.Section, symbols []elf.Symbol) {
	again := repeated(symbols)
	if len(again) == 0 || len(again) > maxRenamed || int(table.Link) >= len(f.Sections) {
		return
	}
	names := f.Sections[table.Link]
	header := f.ByteOrder.Uint64(b.File[headersAt:]) + uint64(table.Link)*sectionHeader
	size := uint64(len(b.File))
	if names.Type != elf.SHT_STRTAB || names.Flags&elf.SHF_COMPRESSED != 0 || names.Offset > size || names.FileSize > size-names.Offset ||
		header > size-sectionHeader {
		return
	}
	taken := make(map[string]bool, len(symbols))
	for _, s := range symbols {
		taken[s.Name] = true
	}
	b.change()
	all := append([]byte(nil), b.File[names.Offset:names.Offset+names.FileSize]...)
	for n, i := range again {
		name := symbols[i].Name
		name = name[:min(len(name), maxNameBefore)]
		fresh := fmt.Sprintf("%s.%d", name, n+1)
		for taken[fresh] {
			fresh += "_"
		}
		taken[fresh] = true
		// The first symbol is not listed. Its name comes first.
		f.ByteOrder.PutUint32(b.File[table.Offset+uint64(i+1)*elf.Sym64Size:], uint32(len(all)))
		all = append(append(all, fresh...), 0)
	}
	f.ByteOrder.PutUint64(b.File[header+sectionOffset:], uint64(len(b.File)))
	f.ByteOrder.PutUint64(b.File[header+sectionSize:], uint64(len(all)))
	b.File = append(b.File, all...)
}

// repeated are the local functions whose name another function has: all but the first, and all where a global one has it.
func repeated(symbols []elf.Symbol) []int {
	seen := map[string]bool{}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && elf.ST_BIND(s.Info) != elf.STB_LOCAL {
			seen[s.Name] = true
		}
	}
	var again []int
	for i, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || elf.ST_BIND(s.Info) != elf.STB_LOCAL || s.Name == "" {
			continue
		}
		if seen[s.Name] {
			again = append(again, i)
		}
		seen[s.Name] = true
	}
	return again
}

// mapsSection is the section of type information that lists the maps.
const mapsSection = ".maps"

// unname takes names and qualifiers away from what maps say that their values are (__array(values, inner_t)): the library
// takes a structure or a function there, and libbpf looks behind names.
func (b *Bound) unname(f *elf.File) {
	types := readTypes(f, b.File)
	for _, at := range types.valuesOfMaps() {
		array := b.look(f, types, at, kindArray)
		if array == nil {
			continue
		}
		if pointer := b.look(f, types, array.at+recordSize, kindPointer); pointer != nil {
			_ = b.look(f, types, pointer.at+sizeAt, kindStruct, kindPrototype)
		}
	}
}

// look has a reference to a type lead to what is behind names, and returns that; nil where it is of no kind that is asked for.
func (b *Bound) look(f *elf.File, types *typeInformation, at int, kinds ...uint32) *record {
	id := types.behind(types.order.Uint32(types.data[at:]))
	for _, kind := range kinds {
		if id == 0 || id >= uint32(len(types.records)) || types.records[id].kind() != kind {
			continue
		}
		if types.order.Uint32(types.data[at:]) != id {
			if !b.Changed {
				b.change()
				types.data = readTypes(f, b.File).data
			}
			types.order.PutUint32(types.data[at:], id)
		}
		return &types.records[id]
	}
	return nil
}

// valuesOfMaps is where the definitions of maps refer to the type of their member values, of which a structure has one. It
// looks at each definition once: a section may list a variable many times, and many variables may have one type.
func (t *typeInformation) valuesOfMaps() []int {
	var all []int
	seen := map[uint32]bool{}
	for _, variable := range t.variablesOf(mapsSection) {
		id := t.behind(t.records[variable].size)
		if seen[id] || id >= uint32(len(t.records)) || t.records[id].kind() != kindStruct {
			continue
		}
		seen[id] = true
		definition := t.records[id]
		for at := definition.at + recordSize; at < definition.at+recordSize+definition.members(); at += 12 {
			if t.isNamed(t.order.Uint32(t.data[at:]), "values") {
				all = append(all, at+4)
				break
			}
		}
	}
	return all
}
