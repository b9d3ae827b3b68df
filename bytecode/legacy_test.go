package bytecode

import (
	"debug/elf"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// referring is an object with a program that loads a map of another section.
func referring(t *testing.T, maps string) []byte {
	t.Helper()
	load := []byte{opLoad64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	code := slices.Concat(load, []byte{0x95, 0, 0, 0, 0, 0, 0, 0})
	names := []byte("\x00f\x00m\x00")
	table := raw(t, nil, elf.Sym64{})
	table = raw(t, table, elf.Sym64{Name: 1, Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC), Shndx: 1, Size: uint64(len(code))})
	table = raw(t, table, elf.Sym64{Name: 3, Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_OBJECT), Shndx: 2, Size: 28})
	return assembled(t,
		section{name: "xdp", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, data: code},
		section{name: maps, kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_WRITE, data: make([]byte, 28)},
		section{name: ".relxdp", kind: elf.SHT_REL, data: raw(t, nil, elf.Rel64{Info: elf.R_INFO(2, 1)}), link: 4, info: 1, entry: 16},
		section{name: ".symtab", kind: elf.SHT_SYMTAB, data: table, link: 5, info: 1, entry: elf.Sym64Size},
		section{name: ".strtab", kind: elf.SHT_STRTAB, data: names})
}

func TestLegacyObjectsAreToBeRebuilt(t *testing.T) {
	for section, want := range map[string]string{
		"lirc_mode2/maps": `section "lirc_mode2/maps" defines maps by struct bpf_map_def`,
		".maps":           "has no type information",
	} {
		r := refusal(t, referring(t, section))
		if r.Rule != "bytecode/legacy-object" || !strings.Contains(r.Reason, "built by a compiler or libbpf that is too old") ||
			!strings.Contains(r.Reason, want) || !strings.Contains(r.Fix, "rebuild it") {
			t.Errorf("%s: refused by %s: %s; %s", section, r.Rule, r.Reason, r.Fix)
		}
	}
	for _, path := range ciliumObjects(t) {
		if filepath.Base(path) != "iproute2_map_compat-el.elf" {
			continue
		}
		if r := refusal(t, mustRead(t, path)); r.Rule != "bytecode/legacy-object" ||
			!strings.Contains(r.Reason, `map "hash_map" is defined by a larger struct than bpf_map_def`) {
			t.Errorf("iproute2's map: refused by %s: %s", r.Rule, r.Reason)
		}
	}
	// What old tools made and the parser takes is inspected.
	if f := facts(t, referring(t, "maps")); len(f.Maps) != 1 {
		t.Errorf("maps are %v", f.Maps)
	}
	// What is merely broken is not old.
	if r := refusal(t, referring(t, "elsewhere")); r.Rule != "bytecode/stray-variable" || r.Object != `variable "m"` ||
		!strings.Contains(r.Reason, `in section "elsewhere"`) || !strings.Contains(r.Fix, `SEC(".maps")`) {
		t.Errorf("a map in no section of maps: refused by %s: %s: %s; %s", r.Rule, r.Object, r.Reason, r.Fix)
	}
}
