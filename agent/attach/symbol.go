package attach

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/text"
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
var errTooLarge = errors.New("its symbols are too many to be looked up here; strip it of debugging symbols, " +
	"or name the offset in the file in place of a symbol")

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
	err = inBinary(path, "look for symbol "+symbol, func(body io.ReaderAt) (err error) {
		address, err = addressIn(body, symbol, offset)
		return err
	})
	return address, err
}

// chosenAddresses is where the chosen functions lie in the file of a binary, in bytes,
// each place once and in their order.
func chosenAddresses(path string, chosen plan.Symbols) (addresses []uint64, err error) {
	err = inBinary(path, "look for symbols "+string(chosen), func(body io.ReaderAt) (err error) {
		addresses, err = addressesIn(body, chosen)
		return err
	})
	return addresses, err
}

// inBinary has do read a binary. An error says what was to be done.
func inBinary(path, what string, do func(io.ReaderAt) error) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open binary: %w", err)
	}
	defer func() { _ = f.Close() }()
	// debug/elf panics on some files: https://github.com/golang/go/issues?q=is:open+debug/elf
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: the binary is broken: %v", what, r)
		}
	}()
	if err := do(f); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// readBinary reads the headers of an executable or a shared object. What is read of its
// symbols afterwards is bounded.
func readBinary(body io.ReaderAt) (*elf.File, error) {
	r := &boundedReader{body, maxHeaderBytes}
	file, err := plain.Of(elf.NewFile(r))
	if err != nil {
		return nil, err
	}
	r.left = maxSymbolBytes
	if file.Type != elf.ET_EXEC && file.Type != elf.ET_DYN {
		return nil, errors.New("the file is neither an executable nor a shared object")
	}
	return file, nil
}

func addressIn(body io.ReaderAt, symbol string, offset uint64) (uint64, error) {
	file, err := readBinary(body)
	if err != nil {
		return 0, err
	}
	s, err := functionOf(file, symbol)
	if errors.Is(err, link.ErrNoSymbol) {
		return 0, notFound(file, symbol)
	}
	if err != nil {
		return 0, err
	}
	if s.Value == 0 {
		return 0, errImported
	}
	if offset >= s.Size && offset > 0 {
		return 0, fmt.Errorf("offset %d is beyond its %d bytes", offset, s.Size)
	}
	return inFile(file, s.Value), nil
}

// errImported: the binary calls the function, and does not have it.
var errImported = fmt.Errorf("it is of another library, which the binary only calls; name that library: %w", link.ErrNotSupported)

// inFile is where the instruction at an address lies in the file.
func inFile(file *elf.File, address uint64) uint64 {
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_LOAD && segment.Flags&elf.PF_X != 0 && segment.Vaddr <= address && address-segment.Vaddr < segment.Memsz {
			return address - segment.Vaddr + segment.Off
		}
	}
	return address
}

// notFound is an ErrNoSymbol that says which of the binary's functions are nearest to a
// name or a glob.
func notFound(file *elf.File, name string) error {
	near := text.NewNearest(strings.Trim(name, "*?"))
	for _, kind := range symbolTables {
		// A table that cannot be read to its end has names as well.
		_ = eachFunction(file, kind, func(s elf.Symbol, at nameAt) error {
			is, err := at.read()
			if err == nil && s.Value != 0 {
				near.Add(is)
			}
			return err
		})
	}
	return fmt.Errorf("%w%s", link.ErrNoSymbol, near)
}

// choice is a choice of functions while the symbols of a binary are read.
type choice struct {
	names, exclude []string
	limit          int
	// has tells which names the binary has.
	has   []bool
	found map[uint64]bool
}

// addressesIn finds the functions of a choice in both tables of symbols. Several names of
// one function give one place.
func addressesIn(body io.ReaderAt, chosen plan.Symbols) ([]uint64, error) {
	file, err := readBinary(body)
	if err != nil {
		return nil, err
	}
	c := choice{found: map[uint64]bool{}}
	c.names, c.exclude, c.limit = chosen.Parts()
	c.has = make([]bool, len(c.names))
	for _, kind := range symbolTables {
		err := eachFunction(file, kind, func(s elf.Symbol, at nameAt) error {
			name, err := at.read()
			if err != nil || s.Value == 0 || !c.take(string(name)) {
				return err
			}
			c.found[inFile(file, s.Value)] = true
			if len(c.found) > c.limit {
				return fmt.Errorf("more than %d functions are chosen; name fewer, exclude some, or raise binary.symbols.limit, which is at most %d",
					c.limit, v1alpha1.MaxFunctions)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for i, name := range c.names {
		if !c.has[i] {
			return nil, fmt.Errorf("function %s: %w", name, notFound(file, name))
		}
	}
	if len(c.found) == 0 {
		return nil, fmt.Errorf("%w: exclude takes away every function that names chooses", link.ErrNoSymbol)
	}
	return slices.Sorted(maps.Keys(c.found)), nil
}

// take reports whether a function is chosen.
func (c *choice) take(name string) bool {
	taken := false
	for i, pattern := range c.names {
		if matches(pattern, name) {
			taken, c.has[i] = true, true
		}
	}
	return taken && !slices.ContainsFunc(c.exclude, func(pattern string) bool { return matches(pattern, name) })
}

// matches reports whether a name matches a glob of libbpf's: * stands for any
// characters, ? for one, and each other character for itself.
func matches(glob, name string) bool {
	// star is where the last * of the glob stands, and rest what is left of the name for it.
	star, rest := -1, 0
	g, n := 0, 0
	for n < len(name) {
		switch {
		case g < len(glob) && glob[g] == '*':
			star, rest = g, n
			g++
		case g < len(glob) && (glob[g] == '?' || glob[g] == name[n]):
			g++
			n++
		case star >= 0:
			rest++
			g, n = star+1, rest
		default:
			return false
		}
	}
	return strings.Trim(glob[g:], "*") == ""
}

// symbolTables are the kinds of tables of symbols: those for the dynamic linker come first.
var symbolTables = [...]elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB}

// functionOf finds a function among the symbols.
func functionOf(file *elf.File, name string) (elf.Symbol, error) {
	for _, kind := range symbolTables {
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
	found, has := elf.Symbol{}, false
	is := make([]byte, len(name)+1)
	err := eachFunction(file, kind, func(s elf.Symbol, at nameAt) error {
		if _, err := at.names.ReadAt(is, at.offset); errors.Is(err, errTooLarge) {
			return err
		} else if err == nil && string(is) == name+"\x00" {
			found, has = s, true
		}
		return nil
	})
	if err == nil && !has {
		err = link.ErrNoSymbol
	}
	return found, err
}

// nameAt is where the name of a symbol stands.
type nameAt struct {
	names  io.ReaderAt
	offset int64
	// buffer is where read puts it.
	buffer *[maxName]byte
}

// maxName is how much is read of a name that is compared with globs and with others: it
// is longer than any name of a definition.
const maxName = 257

// read reads the name, which is valid until the next one is read.
func (n nameAt) read() ([]byte, error) {
	got, err := n.names.ReadAt(n.buffer[:], n.offset)
	if errors.Is(err, errTooLarge) {
		return nil, err
	}
	name, _, _ := bytes.Cut(n.buffer[:got], []byte{0})
	return name, nil
}

// eachFunction calls do with each function of one table of symbols.
func eachFunction(file *elf.File, kind elf.SectionType, do func(elf.Symbol, nameAt) error) error {
	table := file.SectionByType(kind)
	if table == nil {
		return nil
	}
	size := uint64(elf.Sym64Size)
	if file.Class == elf.ELFCLASS32 {
		size = elf.Sym32Size
	}
	if table.Flags&elf.SHF_COMPRESSED != 0 || table.Size/size > maxSymbols {
		return errTooLarge
	}
	if int(table.Link) >= len(file.Sections) || table.Type == elf.SHT_NOBITS {
		return errors.New("its symbols have no names")
	}
	symbols := bufio.NewReader(io.NewSectionReader(table.ReaderAt, 0, int64(table.Size)))
	name := nameAt{names: file.Sections[table.Link], buffer: new([maxName]byte)}
	for range table.Size / size {
		one, at, err := readSymbol(symbols, file)
		if err != nil {
			return fmt.Errorf("read symbols: %w", err)
		}
		if elf.ST_TYPE(one.Info) != elf.STT_FUNC {
			continue
		}
		name.offset = int64(at)
		if err := do(one, name); err != nil {
			return err
		}
	}
	return nil
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
