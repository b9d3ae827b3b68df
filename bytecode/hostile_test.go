package bytecode

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// section is one section of an object that no compiler makes.
type section struct {
	name       string
	kind       elf.SectionType
	flags      elf.SectionFlag
	data       []byte
	link, info uint32
	entry      uint64
}

// assembled is an object of these sections, after the empty one that every
// object begins with, and before the table of their names.
func assembled(t *testing.T, sections ...section) []byte {
	t.Helper()
	sections = append([]section{{}}, sections...)
	names := []byte{0}
	starts := make([]uint32, len(sections)+1)
	for i, s := range sections {
		starts[i] = uint32(len(names))
		names = append(append(names, s.name...), 0)
	}
	sections = append(sections, section{kind: elf.SHT_STRTAB, data: names})
	body := make([]byte, binary.Size(elf.Header64{}))
	var headers []byte
	for i, s := range sections {
		headers = raw(t, headers, elf.Section64{
			Name: starts[i], Type: uint32(s.kind), Flags: uint64(s.flags), Off: uint64(len(body)), Size: uint64(len(s.data)),
			Link: s.link, Info: s.info, Entsize: s.entry,
		})
		body = append(body, s.data...)
	}
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_BPF), Version: uint32(elf.EV_CURRENT), Shoff: uint64(len(body)),
		Shentsize: 64, Shnum: uint16(len(sections)), Shstrndx: uint16(len(sections) - 1),
	}
	copy(body, raw(t, nil, header))
	return append(body, headers...)
}

// raw appends a value in the byte order of most machines.
func raw(t *testing.T, to []byte, value any) []byte {
	t.Helper()
	to, err := binary.Append(to, binary.LittleEndian, value)
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// chained is an object of so many programs that all reach each of so many
// functions: the first function calls the second, and so on.
func chained(t *testing.T, programs, functions, nameBytes int) []byte {
	t.Helper()
	const text, xdp, license, symbols, strtab = 1, 2, 5, 6, 7
	call := []byte{opCall, 1 << 4, 0, 0, 0xff, 0xff, 0xff, 0xff}
	exit := []byte{0x95, 0, 0, 0, 0, 0, 0, 0}
	names, table := []byte{0}, raw(t, nil, elf.Sym64{})
	symbol := func(name string, kind elf.SymType, section uint16, at, size int) {
		table = raw(t, table, elf.Sym64{Name: uint32(len(names)), Info: elf.ST_INFO(elf.STB_GLOBAL, kind), Shndx: section, Value: uint64(at), Size: uint64(size)})
		names = append(append(names, name...), 0)
	}
	reference := func(table []byte, at, symbol int) []byte {
		return raw(t, table, elf.Rel64{Off: uint64(at), Info: elf.R_INFO(uint32(symbol), 10)})
	}
	var code, calls, entries, entered []byte
	for i := range functions {
		symbol(fmt.Sprintf("f%0*d", nameBytes-1, i), elf.STT_FUNC, text, len(code), len(call))
		if i+1 == functions {
			code = append(code, exit...)
			continue
		}
		calls = reference(calls, len(code), i+2)
		code = append(code, call...)
	}
	for i := range programs {
		symbol(fmt.Sprintf("p%d", i), elf.STT_FUNC, xdp, len(entries), len(call))
		entered = reference(entered, len(entries), 1)
		entries = append(entries, call...)
	}
	symbol("_license", elf.STT_OBJECT, license, 0, 4)
	const executable = elf.SHF_ALLOC | elf.SHF_EXECINSTR
	return assembled(t,
		section{name: ".text", kind: elf.SHT_PROGBITS, flags: executable, data: code},
		section{name: "xdp", kind: elf.SHT_PROGBITS, flags: executable, data: entries},
		section{name: ".rel.text", kind: elf.SHT_REL, data: calls, link: symbols, info: text, entry: 16},
		section{name: ".relxdp", kind: elf.SHT_REL, data: entered, link: symbols, info: xdp, entry: 16},
		section{name: "license", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, data: []byte("GPL\x00")},
		section{name: ".symtab", kind: elf.SHT_SYMTAB, data: table, link: strtab, info: 1, entry: elf.Sym64Size},
		section{name: ".strtab", kind: elf.SHT_STRTAB, data: names},
	)
}

// rejection is what Inspect rejects an object for.
func refusal(t *testing.T, object []byte) *Rejection {
	t.Helper()
	_, err := Inspect(bytes.NewReader(object), Options{})
	var r *Rejection
	if !errors.As(err, &r) {
		t.Fatalf("got %v, want a refusal", err)
	}
	return r
}

func TestFactsAreCountedWhileTheyAreGathered(t *testing.T) {
	// A program says of each function name, quotes and comma: 400 × 503 bytes.
	r := refusal(t, chained(t, 200, 400, 500))
	if r.Rule != "bytecode/too-many-facts" || !strings.Contains(r.Reason, "first 6 of its 200 programs") {
		t.Errorf("refused by %s: %s", r.Rule, r.Reason)
	}
	few := facts(t, chained(t, 5, 400, 500))
	if len(few.Programs) != 5 || len(few.Programs[4].Subprograms) != 400 {
		t.Errorf("%d programs, %d functions in the last", len(few.Programs), len(few.Programs[4].Subprograms))
	}
}

// long is a table of one name of 128 KiB, and an empty one.
var long = append(append([]byte{0}, bytes.Repeat([]byte("a"), 128<<10)...), 0)

// header finds the header of a section that assembled was given, counted from 1.
func header(object []byte, section int) []byte {
	return object[binary.LittleEndian.Uint64(object[40:])+64*uint64(section):][:64]
}

// sharing are sections without contents that all have the same long name.
func sharing(t *testing.T, number int) []byte {
	object := assembled(t, append([]section{{name: string(long[1:])}}, make([]section, number)...)...)
	for i := range number {
		copy(header(object, 2+i)[:4], header(object, 1)[:4])
	}
	return object
}

// symbols are many of one name, out of a section.
func symbols(t *testing.T, number int, names section) []byte {
	var table []byte
	for range number {
		table = raw(t, table, elf.Sym64{Name: 1})
	}
	return assembled(t, section{name: ".symtab", kind: elf.SHT_SYMTAB, data: table, link: 2, entry: elf.Sym64Size}, names)
}

// types are many forward declarations of one name.
func types(t *testing.T, number int) []byte {
	const forward = 7 << 24
	var table []byte
	for range number {
		table = raw(t, table, [3]uint32{1, forward, 0})
	}
	data := raw(t, nil, struct {
		Magic                      uint16
		Version, Flags             uint8
		Header                     uint32
		At, Size, Names, NamesSize uint32
	}{0xeb9f, 1, 0, 24, 0, uint32(len(table)), uint32(len(table)), uint32(len(long))})
	return assembled(t, section{name: ".BTF", kind: elf.SHT_PROGBITS, data: append(append(data, table...), long...)})
}

// bomb is what says of itself that it unpacks to a GiB.
func bomb(t *testing.T) []byte {
	return raw(t, nil, elf.Chdr64{Type: uint32(elf.COMPRESS_ZLIB), Size: 1 << 30})
}

func TestWhatSharesItsBytesIsRefused(t *testing.T) {
	many := func(o []byte) []byte {
		for i := range 3 {
			copy(header(o, 2+i)[24:40], header(o, 1)[24:40])
		}
		return o
	}
	code := section{name: "xdp", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, data: make([]byte, 1<<20)}
	hidden := code
	hidden.name, hidden.flags, hidden.data = ".debug_info", hidden.flags|elf.SHF_COMPRESSED, bomb(t)
	for name, test := range map[string]struct {
		object []byte
		rule   string
	}{
		"the name of many sections": {sharing(t, 200), "bytecode/long-name"},
		"the name of many symbols":  {symbols(t, 200, section{name: ".strtab", kind: elf.SHT_STRTAB, data: long}), "bytecode/long-name"},
		"a name without an end":     {symbols(t, 200, section{name: ".strtab", kind: elf.SHT_STRTAB, data: long[:len(long)-1]}), "bytecode/long-name"},
		"the name of many types":    {types(t, 1000), "bytecode/long-name"},
		"the contents of sections":  {many(assembled(t, code, section{name: "a"}, section{name: "b"}, section{name: "c"})), "bytecode/overlapping-sections"},
		"code that is called DWARF": {assembled(t, hidden), "bytecode/compressed-section"},
		"names that are called DWARF": {
			symbols(t, 1, section{name: ".debug_str", kind: elf.SHT_PROGBITS, flags: elf.SHF_COMPRESSED, data: bomb(t)}), "bytecode/compressed-section",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if r := refusal(t, test.object); r.Rule != test.rule || r.Reason == "" || r.Fix == "" {
				t.Errorf("refused by %s: %s", r.Rule, r.Reason)
			}
		})
	}
}

func TestHeadersThatLieAreNotFollowed(t *testing.T) {
	for name, change := range map[string]func(h *elf.Header64){
		"no sections, and a place for them":    func(h *elf.Header64) { h.Shnum = 0 },
		"sections, and no place for them":      func(h *elf.Header64) { h.Shoff, h.Shstrndx = 0, 9 },
		"names in a section that is not there": func(h *elf.Header64) { h.Shstrndx = 9 },
		"sections beyond the file":             func(h *elf.Header64) { h.Shoff = 1 << 40 },
		"sections before the file":             func(h *elf.Header64) { h.Shoff = 1<<64 - 64 },
		"sections of no size":                  func(h *elf.Header64) { h.Shentsize = 0 },
		"more sections than there are":         func(h *elf.Header64) { h.Shnum = 4000 },
	} {
		t.Run(name, func(t *testing.T) {
			object := assembled(t, section{name: "xdp", kind: elf.SHT_PROGBITS})
			var h elf.Header64
			if _, err := binary.Decode(object, binary.LittleEndian, &h); err != nil {
				t.Fatal(err)
			}
			change(&h)
			copy(object, raw(t, nil, h))
			if _, err := Inspect(bytes.NewReader(object), Options{}); err == nil || !strings.Contains(err.Error(), "parse object") {
				t.Errorf("got %v", err)
			}
		})
	}
}
