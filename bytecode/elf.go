package bytecode

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/bytecode/plain"
)

// checkELF rejects what would make the parser spend more memory than the file
// has bytes: sections that say they are huge, that unpack, or whose functions
// overlap a thousand times. It runs before cilium/ebpf, which trusts its input
// there.
func checkELF(object []byte, opts Options) error {
	if err := checkSections(object, opts); err != nil {
		return err
	}
	f, err := plain.Of(elf.NewFile(bytes.NewReader(object)))
	if err != nil {
		return fmt.Errorf("parse object: %w", err)
	}
	if f.Type != elf.ET_REL {
		return fmt.Errorf("parse object: %s is not a relocatable ELF file", f.Type)
	}
	var unpacked, packed uint64
	for _, s := range f.Sections {
		if err := checkSection(s, opts); err != nil {
			return err
		}
		if s.Type == elf.SHT_NOBITS {
			unpacked = sum(unpacked, s.Size)
		} else {
			packed = sum(packed, s.FileSize)
		}
	}
	if packed > uint64(len(object)) {
		return &Rejection{
			Rule:   "bytecode/overlapping-sections",
			Object: "object",
			Reason: fmt.Sprintf("its sections have %d bytes together, more than the %d of the file", packed, len(object)),
			Fix:    rebuildObject,
		}
	}
	if unpacked > uint64(opts.MaxSize) {
		return &Rejection{
			Rule:   "bytecode/too-large",
			Object: "sections without contents",
			Reason: fmt.Sprintf("they ask for %d bytes together, more than %d", unpacked, opts.MaxSize),
			Fix:    "keep large tables in maps instead of globals",
		}
	}
	if err := checkTypeNames(f); err != nil {
		return err
	}
	return checkSymbols(f, opts)
}

// checkSection rejects sections that unpack to more than the file holds.
// Compilers compress nothing but DWARF, which is not read.
func checkSection(s *elf.Section, opts Options) error {
	if isDWARF(s) {
		return nil
	}
	if s.Flags&elf.SHF_COMPRESSED != 0 {
		return compressedSection("section " + printable(s.Name))
	}
	limit, fix := uint64(opts.MaxSize), "keep large tables in maps instead of globals"
	if s.Name == ".BTF" {
		limit, fix = uint64(opts.MaxBTF), "declare only the types that the programs use; an object without maps, CO-RE and kernel functions loads without BTF too: "+
			"`llvm-objcopy -R .BTF -R .BTF.ext FILE.o`"
	}
	if s.Size > limit {
		return &Rejection{
			Rule:   "bytecode/too-large",
			Object: "section " + printable(s.Name),
			Reason: fmt.Sprintf("it asks for %d bytes, more than %d", s.Size, limit),
			Fix:    fix,
		}
	}
	return nil
}

// isDWARF tells sections for debuggers by more than their names, which code and
// tables might have as well.
func isDWARF(s *elf.Section) bool {
	const harmless = elf.SHF_MERGE | elf.SHF_STRINGS | elf.SHF_COMPRESSED
	return s.Type == elf.SHT_PROGBITS && s.Flags&^harmless == 0 &&
		(strings.HasPrefix(s.Name, ".debug") || strings.HasPrefix(s.Name, ".zdebug"))
}

func compressedSection(object string) error {
	return &Rejection{
		Rule:   "bytecode/compressed-section",
		Object: object,
		Reason: "it is compressed",
		Fix:    "link the object without --compress-debug-sections and -gz",
	}
}

// checkSymbols looks at what functions refer to, and bounds what linking makes of
// them, every program of the object getting its own copy of all it reaches.
func checkSymbols(f *elf.File, opts Options) error {
	if err := checkSymbolNames(f, opts); err != nil {
		return err
	}
	symbols, err := plain.Of(f.Symbols())
	if err != nil {
		return fmt.Errorf("parse object: read symbols: %w", err)
	}
	if err := checkOverlap(f, symbols, opts); err != nil {
		return err
	}
	var functions []elf.Symbol
	for _, s := range symbols {
		section := functionSection(f, s)
		if section == nil {
			continue
		}
		if s.Value > section.Size || s.Size > section.Size-s.Value {
			return fmt.Errorf("parse object: symbol %s reaches past section %s", printable(s.Name), printable(section.Name))
		}
		functions = append(functions, s)
	}
	named, err := relocated(f)
	if err != nil {
		return err
	}
	linked := newLinker(f, symbols, functions, named)
	if err := checkReferences(f, functions, named, linked); err != nil {
		return err
	}
	return linked.checkLinked(opts)
}

// checkOverlap bounds what the symbols name together. The parser reads and
// copies what each of them names on its own, and nothing keeps a thousand from
// naming the same megabyte.
func checkOverlap(f *elf.File, symbols []elf.Symbol, opts Options) error {
	var named uint64
	for _, s := range symbols {
		if int(s.Section) < len(f.Sections) {
			named = sum(named, s.Size)
		}
	}
	if named <= 2*uint64(opts.MaxSize) {
		return nil
	}
	return &Rejection{
		Rule:   "bytecode/overlapping-symbols",
		Object: "object",
		Reason: fmt.Sprintf("its symbols name %d bytes, the same ones over and over", named),
		Fix:    rebuildObject,
	}
}

// functionSection is the section of code that a symbol names a function in, or
// nil for other symbols.
func functionSection(f *elf.File, s elf.Symbol) *elf.Section {
	kind := elf.ST_TYPE(s.Info)
	if s.Size == 0 || int(s.Section) >= len(f.Sections) || kind != elf.STT_FUNC && kind != elf.STT_NOTYPE {
		return nil
	}
	section := f.Sections[s.Section]
	if section.Flags&elf.SHF_EXECINSTR == 0 || section.Type != elf.SHT_PROGBITS {
		return nil
	}
	return section
}

// The parts of an instruction that checkReferences looks at, from
// include/uapi/linux/bpf.h.
const (
	opLoad64       = 0x18 // BPF_LD | BPF_IMM | BPF_DW, two instructions wide
	opCall         = 0x85 // BPF_JMP | BPF_CALL
	sourceFunction = 4    // BPF_PSEUDO_FUNC
	sourceCall     = 1    // BPF_PSEUDO_CALL
	sourceKfunc    = 2    // BPF_PSEUDO_KFUNC_CALL
)

// checkReferences rejects code that names maps, kfuncs or kernel objects by
// number. The parser would pass the number on to the kernel, which looks it up
// among the loader's own file descriptors: a raw "map 7" would reach into
// whatever map the agent has open as 7, another application's included.
func checkReferences(f *elf.File, functions []elf.Symbol, named relocations, linked *linker) error {
	code := map[elf.SectionIndex][]byte{}
	for _, fn := range functions {
		if code[fn.Section] == nil {
			var err error
			if code[fn.Section], err = plain.Of(f.Sections[fn.Section].Data()); err != nil {
				return fmt.Errorf("parse object: read section %s: %w", printable(f.Sections[fn.Section].Name), err)
			}
		}
		for w := range codeWords(code[fn.Section][fn.Value:fn.Value+fn.Size], fn.Value, f.ByteOrder) {
			_, byName := named[fn.Section][w.at]
			switch {
			case w.op == opCall && w.source == sourceKfunc && !byName:
				return byNumber(whereIn(fn, w), "calls a kernel function")
			case w.op == opLoad64 && w.source != 0 && w.source != sourceFunction && !byName:
				return byNumber(whereIn(fn, w), "loads a map or a kernel object")
			}
			linked.read(fn, w)
		}
	}
	return nil
}

// whereIn names the place of an instruction.
func whereIn(fn elf.Symbol, w codeWord) string {
	return fmt.Sprintf("instruction %d of function %s", (w.at-fn.Value)/asm.InstructionSize, printable(fn.Name))
}

// sourceRegister reads the source register out of an instruction's second byte.
func sourceRegister(b byte, order binary.ByteOrder) byte {
	if order == binary.BigEndian {
		return b & 0xf
	}
	return b >> 4
}

// relocations are the symbols that are named at offsets of sections of code, by
// their numbers.
type relocations map[elf.SectionIndex]map[uint64]uint32

// relocated finds the relocations of an object's code. The parser takes the last of several tables for one section, and takes
// tables with the names of other sections for those: both are rejected, since
// no compiler makes them and they could show two readers two programs.
func relocated(f *elf.File) (relocations, error) {
	tables := relocations{}
	for _, s := range f.Sections {
		target := elf.SectionIndex(s.Info)
		if s.Type != elf.SHT_REL || int(target) >= len(f.Sections) || f.Sections[target].Flags&elf.SHF_EXECINSTR == 0 {
			continue
		}
		if tables[target] != nil || !strings.HasPrefix(s.Name, ".rel") {
			return nil, &Rejection{
				Rule:   "bytecode/ambiguous-relocations",
				Object: "section " + printable(s.Name),
				Reason: fmt.Sprintf("it relocates section %s in a way that readers may disagree on", printable(f.Sections[target].Name)),
				Fix:    rebuildObject,
			}
		}
		table, err := plain.Of(s.Data())
		if err != nil {
			return nil, fmt.Errorf("parse object: read section %s: %w", printable(s.Name), err)
		}
		tables[target] = map[uint64]uint32{}
		for ; s.Entsize >= 16 && uint64(len(table)) >= s.Entsize; table = table[s.Entsize:] {
			tables[target][f.ByteOrder.Uint64(table)] = elf.R_SYM64(f.ByteOrder.Uint64(table[8:]))
		}
	}
	return tables, nil
}

// tooMany rejects a count.
func tooMany(what string, have, limit int) error {
	return &Rejection{
		Rule:   "bytecode/too-many-" + what,
		Object: "object",
		Reason: fmt.Sprintf("it has %d %s, more than %d", have, what, limit),
		Fix:    "split it into several objects",
	}
}

// printable quotes a name from an untrusted file, and cuts it short.
func printable(name string) string {
	const most = 64
	if len(name) > most {
		name = name[:most] + "…"
	}
	return fmt.Sprintf("%q", name)
}
