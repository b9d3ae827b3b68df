// Package usdt reads the USDT probes of binaries, and writes their arguments as libbpf's
// usdt.bpf.h reads them.
//
// Everything that it reads is hostile: sizes are bounded, and what is malformed is an
// error. It opens nothing and attaches nothing.
package usdt

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/text"
)

// The sections of a binary that tell of its probes, and the name and type of a note
// (https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation).
const (
	noteSection, baseSection = ".note.stapsdt", ".stapsdt.base"
	noteOwner, noteType      = "stapsdt\x00", 3
)

// The bounds of a binary's probes.
const (
	// maxNoteBytes is the size of all notes together.
	maxNoteBytes = 8 << 20
	// maxSites is how many places one probe may have.
	maxSites = 256
	// noteHeader is the size of the header of a note, and addresses that of what a note
	// has before its texts.
	noteHeader, addresses = 12, 24
)

// Site is one place of a probe.
type Site struct {
	// Offset is where its instruction lies in the file, in bytes.
	Offset uint64
	// Semaphore is where the counter lies in the file by which the binary learns whether
	// anybody probes it; 0 without one.
	Semaphore uint64
	// Arguments are where its arguments are, as the note says.
	Arguments string
	// Code is what the file has at the place, up to the longest instruction's length.
	Code string
}

// maxInstruction is how long an instruction may be, in bytes.
const maxInstruction = 16

// Sites returns the places of a probe, by their offset. An error names the probes that
// are near one that the binary lacks.
func Sites(file *elf.File, provider, name string) ([]Site, error) {
	if file.Class != elf.ELFCLASS64 || file.ByteOrder.String() != "LittleEndian" {
		return nil, errors.New("the binary is not of 64 bits and little-endian")
	}
	section := file.Section(noteSection)
	if section == nil || section.Type != elf.SHT_NOTE {
		return nil, errors.New("the binary has no USDT probes")
	}
	if section.Size > maxNoteBytes || section.Flags&elf.SHF_COMPRESSED != 0 {
		return nil, fmt.Errorf("the notes of the binary's probes take more than %d bytes", maxNoteBytes)
	}
	notes, err := plain.Of(section.Data())
	if err != nil {
		return nil, fmt.Errorf("read the notes of probes: %w", err)
	}
	wanted := provider + ":" + name
	near := text.NewNearest(wanted)
	var sites []Site
	for len(notes) > 0 {
		var n note
		if n, notes, err = nextNote(file, notes); err != nil {
			return nil, err
		}
		if n.probe != wanted {
			near.Add([]byte(n.probe))
			continue
		}
		site, err := n.site(file)
		if err != nil {
			return nil, fmt.Errorf("probe %s: %w", wanted, err)
		}
		if !slices.ContainsFunc(sites, func(s Site) bool { return s.Offset == site.Offset }) {
			sites = append(sites, site)
		}
		if len(sites) > maxSites {
			return nil, fmt.Errorf("probe %s has more than %d places", wanted, maxSites)
		}
	}
	if len(sites) == 0 {
		return nil, fmt.Errorf("the binary has no probe %s%s", wanted, near)
	}
	slices.SortFunc(sites, func(a, b Site) int { return int(int64(a.Offset - b.Offset)) })
	return sites, nil
}

// note is one note as it stands in the binary.
type note struct {
	// location, base and semaphore are addresses.
	location, base, semaphore uint64
	// probe is provider:name, and arguments is where its arguments are.
	probe, arguments string
}

// errNote: a note is not what its header says.
var errNote = errors.New("the notes of the binary's probes are broken")

// nextNote reads the first note, and returns the rest. A note of another kind is one
// without a probe.
func nextNote(file *elf.File, notes []byte) (n note, rest []byte, err error) {
	if len(notes) < noteHeader {
		return n, nil, errNote
	}
	owner, size, kind := uint64(file.ByteOrder.Uint32(notes)), uint64(file.ByteOrder.Uint32(notes[4:])), file.ByteOrder.Uint32(notes[8:])
	descAt := noteHeader + padded(owner)
	if descAt+size > uint64(len(notes)) {
		return n, nil, errNote
	}
	desc := notes[descAt : descAt+size]
	rest = notes[min(descAt+padded(size), uint64(len(notes))):]
	if kind != noteType || string(notes[noteHeader:noteHeader+owner]) != noteOwner {
		return n, rest, nil
	}
	if len(desc) < addresses {
		return n, nil, errNote
	}
	n.location, n.base, n.semaphore = file.ByteOrder.Uint64(desc), file.ByteOrder.Uint64(desc[8:]), file.ByteOrder.Uint64(desc[16:])
	texts := bytes.SplitN(desc[addresses:], []byte{0}, 4)
	if len(texts) < 4 || len(texts[1]) == 0 {
		return n, nil, errNote
	}
	n.probe, n.arguments = string(texts[0])+":"+string(texts[1]), string(texts[2])
	return n, rest, nil
}

// padded is a size with what follows up to a multiple of four bytes.
func padded(n uint64) uint64 { return (n + 3) &^ 3 }

// site is where the note's addresses lie in the file. A binary that was moved after it was
// linked has another base than its notes say, and their addresses are off by as much.
func (n note) site(file *elf.File) (Site, error) {
	var moved uint64
	if base := file.Section(baseSection); base != nil && base.Addr != 0 && n.base != 0 {
		moved = base.Addr - n.base
	}
	s := Site{Arguments: n.arguments}
	segment, at, ok := inFile(file, n.location+moved, true)
	if !ok {
		return s, fmt.Errorf("its address %#x is no instruction of the binary", n.location+moved)
	}
	code := make([]byte, maxInstruction)
	got, err := segment.ReadAt(code, int64(at-segment.Off))
	if err != nil && !errors.Is(err, io.EOF) {
		return s, fmt.Errorf("read its instruction: %w", err)
	}
	s.Offset, s.Code = at, string(code[:got])
	if n.semaphore == 0 {
		return s, nil
	}
	if _, s.Semaphore, ok = inFile(file, n.semaphore+moved, false); !ok {
		return s, fmt.Errorf("the address %#x of its semaphore is no data of the binary", n.semaphore+moved)
	}
	return s, nil
}

// inFile is where an address of instructions, or of data, lies in the file.
func inFile(file *elf.File, address uint64, instruction bool) (segment *elf.Prog, at uint64, ok bool) {
	for _, p := range file.Progs {
		if p.Type == elf.PT_LOAD && p.Vaddr <= address && address-p.Vaddr < p.Memsz {
			at := address - p.Vaddr + p.Off
			return p, at, at != 0 && (p.Flags&elf.PF_X != 0) == instruction
		}
	}
	return nil, 0, false
}
