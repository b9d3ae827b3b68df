package bytecode

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

//go:generate go run ../test/fixture/programs/compile testdata/src testdata

// testCPUs is what the tests count per-CPU maps for, so that goldens do not
// depend on the machine.
const testCPUs = 4

// objectFile reads one of this package's own objects.
func objectFile(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".o"))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// facts inspects an object that must be fine.
func facts(tb testing.TB, object []byte) Facts {
	tb.Helper()
	f, err := Inspect(bytes.NewReader(object), Options{CPUs: testCPUs})
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// program inspects one program of one of this package's own objects.
func program(tb testing.TB, object, name string) Program {
	tb.Helper()
	f := facts(tb, objectFile(tb, object))
	p, ok := f.Program(name)
	if !ok {
		tb.Fatalf("%s has no program %s", object, name)
	}
	return p
}

// ciliumObjects are the ELF files of cilium/ebpf's own tests, for every
// compiler and byte order it supports, in the order of their names.
func ciliumObjects(tb testing.TB) []string {
	tb.Helper()
	out, err := exec.CommandContext(tb.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cilium/ebpf").Output()
	if err != nil {
		tb.Skipf("SKIPPED: find the module's folder: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "testdata", "*.elf"))
	if err != nil || len(files) < 50 {
		tb.Fatalf("found %d objects (%v), want about 57", len(files), err)
	}
	return files
}

// indented is a value as JSON for people.
func indented(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

// sectionHeader finds where in an object the header of a section lies, for
// tests that damage it.
func sectionHeader(t *testing.T, object []byte, name string) (header []byte, index int) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	start := binary.LittleEndian.Uint64(object[0x28:])
	for i, s := range f.Sections {
		if s.Name == name {
			at := start + uint64(i)*64
			return object[at : at+64], i
		}
	}
	t.Fatalf("no section %s", name)
	return nil, 0
}
