package attach

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/userbinary"
)

// library returns a binary with symbols, and one of its functions.
func library(t *testing.T) ([]byte, elf.Symbol) {
	t.Helper()
	body, err := os.ReadFile("/bin/bash")
	if err != nil {
		t.Skip("SKIPPED: needs a binary with symbols:", err)
	}
	file, err := elf.NewFile(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := file.DynamicSymbols()
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "main" })
	if err != nil || i < 0 {
		t.Skip("SKIPPED: needs a binary with symbols:", err)
	}
	return body, symbols[i]
}

func TestAFunctionIsFoundInItsBinary(t *testing.T) {
	body, main := library(t)
	address, err := addressIn(bytes.NewReader(body), "main", 0)
	if err != nil || address == 0 || address > uint64(len(body)) || address > main.Value {
		t.Errorf("main is at %#x of the file and %#x of memory, %v", address, main.Value, err)
	}
	if _, err := addressIn(bytes.NewReader(body), "main", main.Size); err == nil {
		t.Error("an offset beyond the function is one in it")
	}
	if _, err := addressIn(bytes.NewReader(body), "no_such_function", 0); !errors.Is(err, link.ErrNoSymbol) {
		t.Errorf("a function that is not there: %v", err)
	}
}

// TestABinaryOfTooManySymbolsIsNotRead patches a binary so that it declares more than
// it has.
func TestABinaryOfTooManySymbolsIsNotRead(t *testing.T) {
	body, _ := library(t)
	const headersAt, sizeOfHeader, flagsAt, sizeAt = 40, 64, 8, 32
	file, err := elf.NewFile(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(file.Sections, func(s *elf.Section) bool { return s.Type == elf.SHT_DYNSYM })
	header := binary.LittleEndian.Uint64(body[headersAt:]) + uint64(at)*sizeOfHeader
	for sentence, patch := range map[string]func(body []byte){
		"too many symbols":   func(body []byte) { binary.LittleEndian.PutUint64(body[header+sizeAt:], 1<<40) },
		"compressed symbols": func(body []byte) { binary.LittleEndian.PutUint64(body[header+flagsAt:], uint64(elf.SHF_COMPRESSED)) },
	} {
		one := bytes.Clone(body)
		patch(one)
		if _, err := addressIn(bytes.NewReader(one), "main", 0); !errors.Is(err, errTooLarge) {
			t.Errorf("%s: %v", sentence, err)
		}
	}
	small := &boundedReader{bytes.NewReader(body), 100}
	if _, err := elf.NewFile(small); !errors.Is(err, errTooLarge) {
		t.Errorf("a binary whose headers are too large: %v", err)
	}
}

// TestManySymbolsOfOneLongNameTakeNoMemory has every symbol of a binary share a name as
// long as its table of names.
func TestManySymbolsOfOneLongNameTakeNoMemory(t *testing.T) {
	const many, long = 1 << 16, 1 << 16
	names := append([]byte{0}, append(bytes.Repeat([]byte("x"), long), 0)...)
	var symbols bytes.Buffer
	for range many {
		if err := binary.Write(&symbols, binary.LittleEndian, elf.Sym64{Name: 1, Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC)}); err != nil {
			t.Fatal(err)
		}
	}
	const headers = 64
	header := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1, Shoff: headers, Ehsize: headers, Shentsize: 64, Shnum: 3, Shstrndx: 2,
	}
	copy(header.Ident[:], elf.ELFMAG+string([]byte{byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}))
	const begin = headers + 3*64
	var body bytes.Buffer
	for _, part := range []any{header, elf.Section64{},
		elf.Section64{Type: uint32(elf.SHT_DYNSYM), Off: begin, Size: uint64(symbols.Len()), Link: 2, Entsize: elf.Sym64Size},
		elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: uint64(begin + symbols.Len()), Size: uint64(len(names))},
		symbols.Bytes(), names} {
		if err := binary.Write(&body, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := addressIn(bytes.NewReader(body.Bytes()), "no_such_function", 0)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, link.ErrNoSymbol) {
		t.Error(err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("it took %d MiB", took>>20)
	}
	if _, err := addressIn(bytes.NewReader(body.Bytes()), string(names[1:len(names)-1]), 0); err == nil || errors.Is(err, link.ErrNoSymbol) {
		t.Errorf("the name that they share: %v", err)
	}
}

func TestAGlobIsThatOfLibbpf(t *testing.T) {
	for glob, names := range map[string]map[string]bool{
		"SSL_*":          {"SSL_read": true, "SSL_": true, "xSSL_": false},
		"*read*":         {"SSL_read_ex": true, "read": true, "rea": false},
		"a?c":            {"abc": true, "ac": false, "abcd": false},
		"*":              {"": true, "net/http.(*Server).Serve": true},
		"net/*.Serve":    {"net/http.(*Server).Serve": true, "net/http.Server": false},
		"f[int]":         {"f[int]": true, "fi": false},
		"*a*b*c":         {"xaybzc": true, "abcabc": true, "acb": false},
		"exact":          {"exact": true, "exactly": false},
		"":               {"": true, "a": false},
		"main.(*T).*run": {"main.(*T).rerun": true, "main.T.run": false},
	} {
		for name, want := range names {
			if matches(glob, name) != want {
				t.Errorf("%q matches %q: %v", glob, name, !want)
			}
		}
	}
}

func TestChosenFunctionsAreFoundOnce(t *testing.T) {
	functions := []userbinary.Function{{Name: "a_one"}, {Name: "a_two", Code: []byte{0x90}}, {Name: "b"}, {Name: "a_three"}, {}}
	offsets := func(of ...int) (all []uint64) {
		for _, i := range of {
			all = append(all, userbinary.Offset(functions, i))
		}
		return all
	}
	for _, o := range []userbinary.Options{{}, {Dynamic: true}, {Bias: 0x400000}} {
		body := bytes.NewReader(userbinary.Make(functions, o))
		for chosen, want := range map[plan.Symbols][]uint64{
			"a_*":               offsets(0, 1, 3),
			"a_* a_one b":       offsets(0, 1, 2, 3),
			"* !a_t*":           offsets(0, 2),
			"b":                 offsets(2),
			"a_* <=3":           offsets(0, 1, 3),
			"a_* <=2":           nil,
			"a_* c":             nil,
			"* !*":              nil,
			"a_one.*":           nil,
			"a_* z* !a_* !b":    nil,
			"a_one a_one a_one": offsets(0),
		} {
			got, err := addressesIn(body, chosen)
			if !slices.Equal(got, want) || (err == nil) != (want != nil) {
				t.Errorf("%+v: %s is at %v (%v), want %v", o, chosen, got, err, want)
			}
		}
		if at, err := addressIn(body, "a_two", 1); err != nil || at != offsets(1)[0] {
			t.Errorf("%+v: a_two is at %d, %v", o, at, err)
		}
	}
}

// FuzzFunctionsOfABinary looks for functions in what may be no binary at all.
func FuzzFunctionsOfABinary(f *testing.F) {
	f.Add(userbinary.Make([]userbinary.Function{{Name: "one"}, {Name: "two"}}, userbinary.Options{}), "o* !two")
	f.Add([]byte(elf.ELFMAG), "*")
	path := filepath.Join(f.TempDir(), "binary")
	f.Fuzz(func(t *testing.T, body []byte, chosen string) {
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := chosenAddresses(path, plan.Symbols(chosen)); err == nil && (len(got) == 0 || len(got) > v1alpha1.MaxFunctions) {
			t.Errorf("%d places without an error", len(got))
		}
	})
}
