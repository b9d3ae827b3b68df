package attach

import (
	"bufio"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cilium/ebpf/link"
)

// The bounds of a binary whose symbols are looked up.
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

func addressIn(body io.ReaderAt, symbol string, offset uint64) (uint64, error) {
	r := &boundedReader{body, maxHeaderBytes}
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
	for _, kind := range []elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB} {
		s, err := functionIn(file, kind, name)
		if !errors.Is(err, link.ErrNoSymbol) {
			return s, err
		}
	}
	return elf.Symbol{}, link.ErrNoSymbol
}

// functionIn finds a function in one table of symbols; of several the last one counts. It
// compares the names where they stand: debug/elf copies each, and many symbols may share
// one that is long.
func functionIn(file *elf.File, kind elf.SectionType, name string) (elf.Symbol, error) {
	table := file.SectionByType(kind)
	if table == nil {
		return elf.Symbol{}, link.ErrNoSymbol
	}
	size := uint64(elf.Sym64Size)
	if file.Class == elf.ELFCLASS32 {
		size = elf.Sym32Size
	}
	if table.Flags&elf.SHF_COMPRESSED != 0 || table.Size/size > maxSymbols {
		return elf.Symbol{}, errTooLarge
	}
	if int(table.Link) >= len(file.Sections) || table.Type == elf.SHT_NOBITS {
		return elf.Symbol{}, errors.New("its symbols have no names")
	}
	names := file.Sections[table.Link]
	found, symbols := elf.Symbol{}, bufio.NewReader(io.NewSectionReader(table.ReaderAt, 0, int64(table.Size)))
	is, err := make([]byte, len(name)+1), link.ErrNoSymbol
	for range table.Size / size {
		one, at, readErr := readSymbol(symbols, file)
		if readErr != nil {
			return elf.Symbol{}, fmt.Errorf("read symbols: %w", readErr)
		}
		if elf.ST_TYPE(one.Info) != elf.STT_FUNC {
			continue
		}
		if _, readErr := names.ReadAt(is, int64(at)); errors.Is(readErr, errTooLarge) {
			return elf.Symbol{}, readErr
		} else if readErr == nil && string(is) == name+"\x00" {
			found, err = one, nil
		}
	}
	return found, err
}

// readSymbol reads the next symbol but for its name, and where that stands in the table of
// names.
func readSymbol(r io.Reader, file *elf.File) (s elf.Symbol, name uint32, err error) {
	if file.Class == elf.ELFCLASS32 {
		var is elf.Sym32
		err = binary.Read(r, file.ByteOrder, &is)
		return elf.Symbol{Info: is.Info, Other: is.Other, Section: elf.SectionIndex(is.Shndx), Value: uint64(is.Value), Size: uint64(is.Size)}, is.Name, err
	}
	var is elf.Sym64
	err = binary.Read(r, file.ByteOrder, &is)
	return elf.Symbol{Info: is.Info, Other: is.Other, Section: elf.SectionIndex(is.Shndx), Value: is.Value, Size: is.Size}, is.Name, err
}
