// Package objectfile parses eBPF object files for everybody who reads them: the
// inspector, the gate and the agent. Two readers that take one file for two
// different programs would make a check of the first worthless.
//
// It is pure, bounds nothing and checks nothing: bytecode.Inspect rejects
// hostile files before it parses them.
package objectfile

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/bytecode/plain"
)

// KconfigSection is the map that loaders make up from BTF for __kconfig
// variables; no ELF section backs it.
const KconfigSection = ".kconfig"

// Object is a parsed object file.
type Object struct {
	// Spec is what the library makes of the file.
	Spec *ebpf.CollectionSpec
	// WeakKconfig are the __kconfig variables that the object can do without:
	// those that a kernel does not have are zero.
	WeakKconfig map[string]bool
	// TypedKsyms are the variables that the object takes from the kernel with their types,
	// and whether it can do without: programs have pointers that the verifier knows, and no
	// bare addresses.
	TypedKsyms map[string]bool
	// SocketFilters are the programs whose sections make them socket filters.
	SocketFilters map[string]bool
	// License is what the licence section says, or empty. Programs have it too;
	// an object without programs has it nowhere else.
	License string
}

// Read parses an object file. It takes the same files as libbpf where
// cilium/ebpf takes less: weak map definitions, such as those of usdt.bpf.h,
// weak __kconfig variables, __kconfig variables behind a typedef, variables of the kernel
// that have a type, sections of variables such as .bss.mine, static functions of one name in
// a file that was linked of several, and maps in maps whose inner one is named by a typedef.
//
// Socket filters become programs of traffic control, which have the same context and all of
// their helpers (docs/adr/0075-a-socket-filter-observes-a-device.md).
func Read(object []byte) (*Object, error) {
	bound, err := Bind(object)
	if err != nil {
		return nil, err
	}
	return bound.Parse()
}

// Kconfig is the type of the object's __kconfig variables, or nil. Loading reads
// the same value, so what is changed in it is changed for the loader.
func Kconfig(spec *ebpf.CollectionSpec) *btf.Datasec {
	var ds *btf.Datasec
	if spec.Types == nil || spec.Types.TypeByName(KconfigSection, &ds) != nil {
		return nil
	}
	return ds
}

// maxKconfig is the size in bytes of an object's __kconfig variables together;
// the loader makes a buffer of it.
const maxKconfig = 1 << 20

// settle gives the __kconfig variables their plain types and true sizes, and
// rejects those that lie outside of their section. The loader writes where the
// type information says, and has no bounds of its own: sizes that lie, or that
// add up to more than 32 bits, would end the process that loads the object.
func settle(ds *btf.Datasec) error {
	if ds.Size > maxKconfig {
		return fmt.Errorf("its variables take %d bytes, more than %d", ds.Size, maxKconfig)
	}
	for i, v := range ds.Vars {
		extern, ok := v.Type.(*btf.Var)
		if !ok {
			return fmt.Errorf("%q is no variable", v.Type.TypeName())
		}
		size, err := plain.Of(btf.Sizeof(extern.Type))
		if err != nil {
			return fmt.Errorf("find the size of variable %q: %w", extern.Name, err)
		}
		if size <= 0 || uint64(v.Offset)+uint64(size) > uint64(ds.Size) {
			return fmt.Errorf("variable %q of %d bytes lies outside of it", extern.Name, size)
		}
		ds.Vars[i].Size, extern.Type = uint32(size), integer(extern.Type)
	}
	return nil
}

// integer is an integer without the names and qualifiers before it: the library
// compares the kinds of LINUX_ variables without looking behind a typedef.
func integer(t btf.Type) btf.Type {
	if under, ok := btf.UnderlyingType(t).(*btf.Int); ok {
		return under
	}
	return t
}

// symbolInfo is where a symbol of a 64-bit ELF file has its binding and type.
const symbolInfo = 4

// Bound is an object file without what the library rejects, and libbpf takes.
type Bound struct {
	// File is the object, and Changed tells that it is not the one that was given.
	File    []byte
	Changed bool
	weak    map[string]bool
	// typed are variables of the kernel whose types were taken away, and whether they are weak.
	typed map[string]bool
	// hidden are functions that no other object may call.
	hidden map[string]bool
	// zeroed are the sections whose names were changed, and what they were.
	zeroed  map[string]string
	license string
}

// Bind makes the weak definitions of maps and the weak references to __kconfig
// variables global. In an object on its own nothing else defines them, so weak
// means global. It takes the types of the kernel's variables away, gives sections such
// as .bss.mine other names, and tells static functions of one name from each other.
func Bind(object []byte) (*Bound, error) {
	b := &Bound{File: object, weak: map[string]bool{}, typed: map[string]bool{}, hidden: map[string]bool{}, zeroed: map[string]string{}}
	f, err := plain.Of(elf.NewFile(bytes.NewReader(object)))
	if err != nil {
		return nil, fmt.Errorf("read ELF: %w", err)
	}
	if b.license, err = license(f); err != nil {
		return nil, err
	}
	table := f.SectionByType(elf.SHT_SYMTAB)
	if table == nil || table.Flags&elf.SHF_COMPRESSED != 0 || f.Class != elf.ELFCLASS64 {
		return b, nil
	}
	b.untype(f)
	b.rename(f)
	b.unname(f)
	symbols, err := plain.Of(f.Symbols())
	if err != nil {
		return nil, fmt.Errorf("read symbols: %w", err)
	}
	b.distinguish(f, table, symbols)
	externs, err := weakExterns(b.File, symbols)
	if err != nil {
		return nil, err
	}
	for i, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && elf.ST_VISIBILITY(s.Other) == elf.STV_HIDDEN {
			b.hidden[s.Name] = true
		}
		if _, typed := b.typed[s.Name]; typed {
			b.typed[s.Name] = elf.ST_BIND(s.Info) == elf.STB_WEAK
		}
		extern := s.Section == elf.SHN_UNDEF && externs[s.Name]
		if elf.ST_BIND(s.Info) != elf.STB_WEAK || !extern && !definesMap(f, s) {
			continue
		}
		if extern {
			b.weak[s.Name] = true
		}
		b.change()
		// The first symbol is not listed.
		b.File[table.Offset+uint64(i+1)*elf.Sym64Size+symbolInfo] = elf.ST_INFO(elf.STB_GLOBAL, elf.ST_TYPE(s.Info))
	}
	return b, nil
}

// Parse parses the object.
func (b *Bound) Parse() (*Object, error) {
	spec, err := plain.Of(ebpf.LoadCollectionSpecFromReader(bytes.NewReader(b.File)))
	if err != nil {
		return nil, err
	}
	if ds := Kconfig(spec); ds != nil {
		if err := settle(ds); err != nil {
			return nil, fmt.Errorf("section %s: %w", KconfigSection, err)
		}
	}
	b.restore(spec)
	filters := map[string]bool{}
	for name, p := range spec.Programs {
		b.hide(p.Instructions)
		if p.Type == ebpf.SocketFilter {
			p.Type, filters[name] = ebpf.SchedCLS, true
		}
	}
	return &Object{Spec: spec, WeakKconfig: b.weak, TypedKsyms: b.typed, SocketFilters: filters, License: b.license}, nil
}

// hide makes hidden functions static, as libbpf does: the kernel then checks them for the
// arguments that they are called with, and not for any.
func (b *Bound) hide(instructions asm.Instructions) {
	for i := range instructions {
		if fn := btf.FuncMetadata(&instructions[i]); fn != nil && b.hidden[fn.Name] {
			fn.Linkage = btf.StaticFunc
		}
	}
}

// license reads the licence section, as the library does: the last of those whose
// names begin with the word.
func license(f *elf.File) (string, error) {
	var data []byte
	for _, s := range f.Sections {
		if !strings.HasPrefix(s.Name, "license") {
			continue
		}
		var err error
		if data, err = plain.Of(s.Data()); err != nil {
			return "", fmt.Errorf("read section %q: %w", s.Name, err)
		}
	}
	text, _, _ := strings.Cut(string(data), "\x00")
	return text, nil
}

// definesMap reports whether a symbol is the definition of a map.
func definesMap(f *elf.File, s elf.Symbol) bool {
	if s.Section == elf.SHN_UNDEF || int(s.Section) >= len(f.Sections) {
		return false
	}
	name := f.Sections[s.Section].Name
	return name == ".maps" || strings.HasPrefix(name, "maps")
}

// weakExterns are the names of the object's __kconfig variables, if it refers to
// anything weakly.
func weakExterns(object []byte, symbols []elf.Symbol) (map[string]bool, error) {
	names := map[string]bool{}
	if !slices.ContainsFunc(symbols, func(s elf.Symbol) bool {
		return s.Section == elf.SHN_UNDEF && elf.ST_BIND(s.Info) == elf.STB_WEAK
	}) {
		return names, nil
	}
	types, err := plain.Of(btf.LoadSpecFromReader(bytes.NewReader(object)))
	if errors.Is(err, btf.ErrNotFound) {
		return names, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read BTF: %w", err)
	}
	if ds := Kconfig(&ebpf.CollectionSpec{Types: types}); ds != nil {
		for _, v := range ds.Vars {
			names[v.Type.TypeName()] = true
		}
	}
	return names, nil
}
