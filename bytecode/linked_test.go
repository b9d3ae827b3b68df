package bytecode

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/skep-dev/skep/test/fixture/programs"
)

// linkedIn counts the instructions of all programs of an object, each with its
// copies of the functions that it reaches.
func linkedIn(f Facts) int {
	all := 0
	for _, p := range f.Programs {
		all += p.Instructions
	}
	return all
}

// apart is an object of so many programs of so many instructions, which call
// nothing.
func apart(t *testing.T, programs, instructions int) []byte {
	t.Helper()
	names, table := []byte{0}, raw(t, nil, elf.Sym64{})
	symbol := func(name string, kind elf.SymType, section uint16, at, size int) {
		table = raw(t, table, elf.Sym64{Name: uint32(len(names)), Info: elf.ST_INFO(elf.STB_GLOBAL, kind), Shndx: section, Value: uint64(at), Size: uint64(size)})
		names = append(append(names, name...), 0)
	}
	one := append(bytes.Repeat([]byte{0xb7, 0, 0, 0, 0, 0, 0, 0}, instructions-1), 0x95, 0, 0, 0, 0, 0, 0, 0)
	for i := range programs {
		symbol(fmt.Sprintf("p%d", i), elf.STT_FUNC, 1, i*len(one), len(one))
	}
	return assembled(t,
		section{name: "xdp", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, data: bytes.Repeat(one, programs)},
		section{name: "license", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, data: []byte("GPL\x00")},
		section{name: ".symtab", kind: elf.SHT_SYMTAB, data: table, link: 4, info: 1, entry: elf.Sym64Size},
		section{name: ".strtab", kind: elf.SHT_STRTAB, data: names})
}

func TestProgramsCountForWhatTheyReach(t *testing.T) {
	f := facts(t, apart(t, 147, 250))
	if len(f.Programs) != 147 || linkedIn(f) != 147*250 {
		t.Errorf("%d programs of %d instructions", len(f.Programs), linkedIn(f))
	}
	// 300 programs, each with a copy of 20,000 functions.
	if r := refusal(t, chained(t, 300, 20000, 6)); r.Rule != "bytecode/too-many-instructions" {
		t.Errorf("refused by %s: %s", r.Rule, r.Reason)
	}
}

// TestLinkingIsCountedAsTheParserDoesIt: of every object there is, as many
// instructions are expected as the parser makes.
func TestLinkingIsCountedAsTheParserDoesIt(t *testing.T) {
	objects := map[string][]byte{"chained": chained(t, 7, 100, 8)}
	for _, path := range ciliumObjects(t) {
		objects[filepath.Base(path)] = mustRead(t, path)
	}
	for _, name := range programs.Names() {
		objects[name] = programs.Object(name)
	}
	own, err := filepath.Glob("testdata/*.o")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range own {
		objects[path] = mustRead(t, path)
	}
	compared := 0
	for name, object := range objects {
		f, err := Inspect(bytes.NewReader(object), Options{})
		if err != nil {
			continue
		}
		file, err := elf.NewFile(bytes.NewReader(object))
		if err != nil {
			t.Fatal(err)
		}
		expected := linkedOf(t, file)
		if parsed := linkedIn(f); expected != parsed {
			t.Errorf("%s: %d instructions expected, %d made by the parser", name, expected, parsed)
		}
		compared++
	}
	if compared < 90 {
		t.Errorf("compared %d objects", compared)
	}
}

// linkedOf is what the bound counts of an object's programs.
func linkedOf(t *testing.T, f *elf.File) int {
	t.Helper()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	var functions []elf.Symbol
	for _, s := range symbols {
		if functionSection(f, s) != nil {
			functions = append(functions, s)
		}
	}
	named, err := relocated(f)
	if err != nil {
		t.Fatal(err)
	}
	l := newLinker(f, symbols, functions, named)
	if err := checkReferences(f, functions, named, l); err != nil {
		t.Fatal(err)
	}
	_, _, copied := l.linked(1 << 40)
	return int(copied)
}

func TestRelocationsWithoutASymbolAreNotFollowed(t *testing.T) {
	object := chained(t, 1, 3, 4)
	for _, table := range []int{3, 4} {
		broken := bytes.Clone(object)
		at := binary.LittleEndian.Uint64(header(broken, table)[24:])
		binary.LittleEndian.PutUint32(broken[at+12:], 0)
		if _, err := Inspect(bytes.NewReader(broken), Options{}); err == nil {
			t.Errorf("a relocation by no symbol in section %d is followed", table)
		}
	}
}
