package objectfile

import (
	"bytes"
	"debug/elf"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// Variables that begin as zero may be in sections of their own, such as .bss.mine. libbpf
// makes a map of each, and the library knows .bss alone. What zeroed begins with is as long
// as what the library takes for variables, so that .bss.mine is .datamine in its eyes.
const (
	zeroed    = ".bss."
	variables = ".data"
)

// Where a 64-bit ELF file has the offset of its section headers, and the number of the
// section with their names; and the size of such a header, which begins with its name.
const (
	headersAt     = 0x28
	namesAt       = 0x3e
	sectionHeader = 64
)

// rename gives sections of variables that begin as zero names that the library takes, in the
// file and in its type information. A file that has such a name already is left as it is.
func (b *Bound) rename(f *elf.File) {
	for i, s := range f.Sections {
		own, ok := strings.CutPrefix(s.Name, zeroed)
		if s.Type != elf.SHT_NOBITS || !ok || f.Section(variables+own) != nil {
			continue
		}
		at := b.nameOfSection(f, i)
		if at < 0 {
			continue
		}
		b.change()
		copy(b.File[at:], variables)
		b.zeroed[variables+own] = s.Name
	}
	if len(b.zeroed) == 0 {
		return
	}
	types := readTypes(f, b.File)
	for _, r := range types.records {
		name := types.nameOf(r)
		own, ok := strings.CutPrefix(name, zeroed)
		if ok && r.kind() == kindSection && b.zeroed[variables+own] == name {
			copy(types.strings[r.name:], variables)
		}
	}
}

// nameOfSection is where the file has the name of a section, or -1.
func (b *Bound) nameOfSection(f *elf.File, section int) int {
	names := int(f.ByteOrder.Uint16(b.File[namesAt:]))
	header := f.ByteOrder.Uint64(b.File[headersAt:]) + uint64(section)*sectionHeader
	if names >= len(f.Sections) || header > uint64(len(b.File)-sectionHeader) {
		return -1
	}
	at := f.Sections[names].Offset + uint64(f.ByteOrder.Uint32(b.File[header:]))
	if name := f.Sections[section].Name; at > uint64(len(b.File)) || !bytes.HasPrefix(b.File[at:], []byte(name)) {
		return -1
	}
	return int(at)
}

// change makes File a copy that may be changed.
func (b *Bound) change() {
	if !b.Changed {
		b.File, b.Changed = bytes.Clone(b.File), true
	}
}

// restore gives the maps of renamed sections the names that the object has for them.
func (b *Bound) restore(spec *ebpf.CollectionSpec) {
	if len(b.zeroed) == 0 {
		return
	}
	for alias, name := range b.zeroed {
		m := spec.Maps[alias]
		if m == nil {
			continue
		}
		delete(spec.Maps, alias)
		spec.Maps[name] = m
		m.Name = zeroed + strings.TrimPrefix(m.Name, variables)
		if section, ok := m.Value.(*btf.Datasec); ok {
			section.Name = name
		}
	}
	for _, v := range spec.Variables {
		if name, ok := b.zeroed[v.SectionName]; ok {
			v.SectionName = name
		}
	}
	for _, p := range spec.Programs {
		for i, ins := range p.Instructions {
			if name, ok := b.zeroed[ins.Reference()]; ok {
				p.Instructions[i] = ins.WithReference(name)
			}
		}
	}
}
