package bytecode

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"strings"

	"github.com/cilium/ebpf"
)

// legacyError is that of an object that the parser does not take and that shows
// by its sections that it was built by tools of long ago, with what the parser
// said of it; nil for other objects. The words of the parser name what is missing
// and not that building the object anew adds it.
func legacyError(object []byte, cause error) error {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil //nolint:nilerr // what is no ELF file is the parser's to name
	}
	trait := legacyTrait(f)
	if trait == "" {
		return nil
	}
	return tooOld(fmt.Sprintf("%s (%v)", trait, &parseError{cause}))
}

// legacyMaps rejects maps with fields that other loaders had of their own, such as
// iproute2's: the agent's does not know them and creates no such map.
func legacyMaps(spec *ebpf.CollectionSpec) error {
	for _, name := range sortedKeys(spec.Maps) {
		extra := spec.Maps[name].Extra
		if extra == nil {
			continue
		}
		fields, err := io.ReadAll(extra)
		if err != nil {
			return fmt.Errorf("parse object: read map %s: %w", printable(name), err)
		}
		if len(bytes.TrimLeft(fields, "\x00")) > 0 {
			return tooOld(fmt.Sprintf("map %s is defined by a larger struct than bpf_map_def, such as iproute2's", printable(name)))
		}
	}
	return nil
}

// tooOld rejects an object that shows by a trait who built it.
func tooOld(trait string) error {
	return &Rejection{
		Rule:   "bytecode/legacy-object",
		Object: "object",
		Reason: "it was built by a compiler or libbpf that is too old: " + trait,
		Fix:    "rebuild it with a clang of today, with its maps defined in SEC(\".maps\"): `" + Compile + "`",
	}
}

// legacyTrait says what an object has of tools before libbpf 1.0, or nothing.
func legacyTrait(f *elf.File) string {
	types := f.Section(".BTF") != nil
	for _, s := range f.Sections {
		switch {
		case s.Type != elf.SHT_PROGBITS || s.Flags&elf.SHF_EXECINSTR != 0:
		case strings.HasSuffix(s.Name, "/maps") && !strings.HasPrefix(s.Name, "maps"):
			// The parser takes such definitions in sections that begin with maps.
			return fmt.Sprintf("section %s defines maps by struct bpf_map_def", printable(s.Name))
		case s.Name == ".maps" && !types:
			return "it defines maps and has no type information (.BTF)"
		}
	}
	if f.Machine == elf.EM_NONE {
		return "its header names no machine"
	}
	return ""
}
