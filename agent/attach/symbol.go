package attach

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/cilium/ebpf/link"
)

// The bounds of a binary whose symbols are looked up: the agent's loop waits for it.
const (
	// maxHeaderBytes is how much is read of a binary to learn its sections, and
	// maxSymbolBytes how much to learn its symbols.
	maxHeaderBytes, maxSymbolBytes = 16 << 20, 256 << 20
	// maxSymbols is how many symbols it may have.
	maxSymbols = 1 << 20
)

// errTooLarge: the binary is beyond a bound.
var errTooLarge = errors.New("its symbols are too many to be looked up here; strip it of debugging symbols, or name the offset in the file in place of a symbol")

// boundedReader fails once more was read than is left.
type boundedReader struct {
	io.ReaderAt
	left int
}

// ReadAt implements io.ReaderAt.
func (r *boundedReader) ReadAt(p []byte, at int64) (int, error) {
	if r.left -= len(p); r.left < 0 {
		return 0, errTooLarge
	}
	return r.ReaderAt.ReadAt(p, at)
}

// symbolAddress is where a function lies in the file of a binary, in bytes. An offset
// into the function has to be less than its size.
func symbolAddress(path, symbol string, offset uint64) (address uint64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("open binary: %w", err)
	}
	defer func() { _ = f.Close() }()
	// debug/elf panics on some files: https://github.com/golang/go/issues?q=is:open+debug/elf
	defer func() {
		if r := recover(); r != nil {
			address, err = 0, fmt.Errorf("look for symbol %s: the binary is broken: %v", symbol, r)
		}
	}()
	address, err = addressIn(f, symbol, offset)
	if err != nil {
		return 0, fmt.Errorf("look for symbol %s: %w", symbol, err)
	}
	return address, nil
}

func addressIn(binary io.ReaderAt, symbol string, offset uint64) (uint64, error) {
	r := &boundedReader{binary, maxHeaderBytes}
	file, err := elf.NewFile(r)
	if err != nil {
		return 0, err
	}
	r.left = maxSymbolBytes
	if file.Type != elf.ET_EXEC && file.Type != elf.ET_DYN {
		return 0, errors.New("the file is neither an executable nor a shared object")
	}
	s, err := functionOf(file, symbol)
	if err != nil {
		return 0, err
	}
	if s.Value == 0 {
		return 0, fmt.Errorf("it is of another library, which the binary only calls; name that library: %w", link.ErrNotSupported)
	}
	if offset >= s.Size && offset > 0 {
		return 0, fmt.Errorf("offset %d is beyond its %d bytes", offset, s.Size)
	}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_LOAD && segment.Flags&elf.PF_X != 0 && segment.Vaddr <= s.Value && s.Value-segment.Vaddr < segment.Memsz {
			return s.Value - segment.Vaddr + segment.Off, nil
		}
	}
	return s.Value, nil
}

// functionOf finds a function among the symbols, of which those for the dynamic linker
// come first.
func functionOf(file *elf.File, name string) (elf.Symbol, error) {
	for _, table := range []struct {
		kind elf.SectionType
		read func() ([]elf.Symbol, error)
	}{{elf.SHT_DYNSYM, file.DynamicSymbols}, {elf.SHT_SYMTAB, file.Symbols}} {
		if s := file.SectionByType(table.kind); s != nil && (s.Flags&elf.SHF_COMPRESSED != 0 || s.Size/elf.Sym32Size > maxSymbols) {
			return elf.Symbol{}, errTooLarge
		}
		symbols, err := table.read()
		if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
			return elf.Symbol{}, err
		}
		// Of several the last one counts.
		for _, s := range slices.Backward(symbols) {
			if s.Name == name && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
				return s, nil
			}
		}
	}
	return elf.Symbol{}, link.ErrNoSymbol
}
