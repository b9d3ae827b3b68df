package bytecode

import (
	"bytes"
	"debug/elf"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// innerMaps rejects maps of maps of which the object does not say what maps they hold. The
// kernel makes none without an example, which the tool that the object is from would make.
func innerMaps(spec *ebpf.CollectionSpec) error {
	for _, name := range sortedKeys(spec.Maps) {
		m := spec.Maps[name]
		if m.InnerMap != nil || m.Type != ebpf.ArrayOfMaps && m.Type != ebpf.HashOfMaps {
			continue
		}
		return &Rejection{
			Rule:   "bytecode/inner-map",
			Object: "map " + printable(name),
			Reason: "it holds maps, and the object does not say which: its own loader would",
			Fix:    "define it in SEC(\".maps\") with the maps that it holds, as __array(values, struct { __uint(type, …); … })",
		}
	}
	return nil
}

// unloadable is the error of an object that neither the parser nor libbpf takes, where more is
// known of the cause than the parser says; nil for other objects.
func unloadable(object []byte, cause error) error {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil //nolint:nilerr // what is no ELF file is the parser's to name
	}
	if strings.Contains(cause.Error(), "Fwd: type is unsized") {
		return &Rejection{
			Rule:   "bytecode/type-without-size",
			Object: "object",
			Reason: fmt.Sprintf("its type information lacks the members of a type: %v", &parseError{cause}),
			Fix: "declare a variable of the type, such as const struct t *unused __attribute__((unused)): " +
				"clang may leave a struct out that nothing but the maps in a map refers to",
		}
	}
	return strayVariable(f, cause)
}

// strayVariable rejects a variable in a section that loaders make no map of, if it is the one
// that the parser names.
func strayVariable(f *elf.File, cause error) error {
	symbols, err := f.Symbols()
	if err != nil {
		return nil //nolint:nilerr // a broken table is the parser's to name
	}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_OBJECT || s.Section == elf.SHN_UNDEF || int(s.Section) >= len(f.Sections) {
			continue
		}
		section := f.Sections[s.Section]
		if section.Flags&elf.SHF_EXECINSTR != 0 || isRead(section.Name) || !strings.Contains(cause.Error(), fmt.Sprintf("reference to %q in section", s.Name)) {
			continue
		}
		return &Rejection{
			Rule:   "bytecode/stray-variable",
			Object: "variable " + printable(s.Name),
			Reason: fmt.Sprintf("it is in section %s, which no loader makes a map of", printable(section.Name)),
			Fix:    "name the section as libbpf does, such as SEC(\".data.mine\"), or SEC(\".maps\") for a map",
		}
	}
	return nil
}

// isRead reports whether loaders read a section that holds no code.
func isRead(name string) bool {
	return slices.ContainsFunc([]string{"license", "version", "maps", ".maps", ".data", ".rodata", ".bss", ".addr_space"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}
