package attach

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf/link"
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
