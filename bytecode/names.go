package bytecode

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/skep-dev/skep/bytecode/plain"
)

// maxTypeNames bounds the names in type information together, in bytes, by an
// estimate that is far too high: compilers stay below a tenth of it.
const maxTypeNames = 32 << 20

// names counts what names take when each of them is copied out of its table.
// The readers of ELF and BTF do that, and nothing keeps a thousand symbols or
// types from having the same megabyte for a name.
type names struct{ most, left int }

func newNames(most int) *names { return &names{most: most, left: most} }

// take counts the name that begins there; false where all of them are too long.
// Of one without an end, all that follows counts, for that is searched.
func (n *names) take(table []byte, at uint64) bool {
	if at < uint64(len(table)) {
		name := table[at:]
		name = name[:min(len(name), n.left+1)]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		n.left -= len(name)
	}
	return n.left >= 0
}

// rejection is that of an object of which names of some kind are too long.
func (n *names) rejection(kind string) error {
	return &Rejection{
		Rule:   "bytecode/long-name",
		Object: "object",
		Reason: fmt.Sprintf("the names of its %s take more than %d bytes together", kind, n.most),
		Fix:    "give programs, maps, variables, types and sections shorter names",
	}
}

// tooShort is the error of a file that ends before what its header says that it has.
func tooShort(before string) error {
	return fmt.Errorf("parse object: the file ends before %s does; copy or build it again: a download or a build may have been cut", before)
}

// checkSections bounds number and names of the sections, before debug/elf reads
// them. What it rejects by itself is left to it.
func checkSections(object []byte, opts Options) error {
	var header elf.Header64
	if !bytes.HasPrefix(object, []byte(elf.ELFMAG)) {
		return errors.New("parse object: it is no ELF file; give the object file that this writes: " + Compile)
	}
	if len(object) < binary.Size(header) {
		return tooShort("its header")
	}
	if class := elf.Class(object[elf.EI_CLASS]); class != elf.ELFCLASS64 {
		return fmt.Errorf("parse object: %s is not a 64-bit ELF file", class)
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(object[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	if _, err := binary.Decode(object, order, &header); err != nil {
		return tooShort("its header")
	}
	if int(header.Shnum) > opts.MaxSections {
		return tooMany("sections", int(header.Shnum), opts.MaxSections)
	}
	if (header.Shoff != 0 || header.Shnum != 0) && header.Shstrndx >= header.Shnum {
		return errors.New("parse object: its header does not tell where the names of its sections are")
	}
	sections := make([]elf.Section64, header.Shnum)
	for i := range sections {
		at := header.Shoff + uint64(i)*uint64(header.Shentsize)
		if _, err := binary.Decode(part(object, at, uint64(binary.Size(sections[i]))), order, &sections[i]); err != nil {
			return tooShort(fmt.Sprintf("the header of section %d of %d", i, header.Shnum))
		}
	}
	if len(sections) == 0 {
		return nil
	}
	table := sections[header.Shstrndx]
	if elf.SectionFlag(table.Flags)&elf.SHF_COMPRESSED != 0 {
		return compressedSection("the names of sections")
	}
	all := newNames(int(opts.MaxSize))
	for _, s := range sections {
		if !all.take(part(object, table.Off, table.Size), uint64(s.Name)) {
			return all.rejection("sections")
		}
	}
	return nil
}

// checkSymbolNames bounds number and names of the symbols, before debug/elf
// reads them.
func checkSymbolNames(f *elf.File, opts Options) error {
	section := f.SectionByType(elf.SHT_SYMTAB)
	if section == nil || int(section.Link) >= len(f.Sections) {
		return nil
	}
	if count := section.Size / elf.Sym64Size; count > uint64(opts.MaxSymbols) {
		return tooMany("symbols", int(min(count, 1<<32)), opts.MaxSymbols)
	}
	strings := f.Sections[section.Link]
	if strings.Flags&elf.SHF_COMPRESSED != 0 {
		return compressedSection("section " + printable(strings.Name))
	}
	symbols, err := plain.Of(section.Data())
	if err != nil {
		return fmt.Errorf("parse object: read symbols: %w", err)
	}
	table, err := plain.Of(strings.Data())
	if err != nil {
		return fmt.Errorf("parse object: read symbols: %w", err)
	}
	all := newNames(int(opts.MaxSize))
	for ; len(symbols) >= elf.Sym64Size; symbols = symbols[elf.Sym64Size:] {
		if !all.take(table, uint64(f.ByteOrder.Uint32(symbols))) {
			return all.rejection("symbols")
		}
	}
	return nil
}

// checkTypeNames bounds the names that type information has. Each number that
// may stand for one counts as one: to tell them apart is the parser's.
func checkTypeNames(f *elf.File) error {
	var table []byte
	for _, s := range f.Sections {
		if s.Name == ".BTF" {
			data, err := plain.Of(s.Data())
			if err != nil {
				return fmt.Errorf("parse object: read section %s: %w", s.Name, err)
			}
			table = typeNames(data, f.ByteOrder)
		}
	}
	all := newNames(maxTypeNames)
	for _, s := range f.Sections {
		if s.Name != ".BTF" && s.Name != ".BTF.ext" {
			continue
		}
		data, err := plain.Of(s.Data())
		if err != nil {
			return fmt.Errorf("parse object: read section %s: %w", s.Name, err)
		}
		for ; len(data) >= 4; data = data[4:] {
			at := uint64(f.ByteOrder.Uint32(data))
			if at > 0 && at < uint64(len(table)) && table[at-1] == 0 && !all.take(table, at) {
				return all.rejection("types")
			}
		}
	}
	return nil
}

// typeNames is the table of names in a .BTF section.
func typeNames(data []byte, order binary.ByteOrder) []byte {
	// struct btf_header in include/uapi/linux/btf.h.
	if len(data) < 24 {
		return nil
	}
	length, offset, size := order.Uint32(data[4:]), order.Uint32(data[16:]), order.Uint32(data[20:])
	return part(data, uint64(length)+uint64(offset), uint64(size))
}

// part is as much of the bytes between two offsets as there is.
func part(data []byte, at, size uint64) []byte {
	at = min(at, uint64(len(data)))
	return data[at:][:min(size, uint64(len(data))-at)]
}
