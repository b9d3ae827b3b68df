package bytecode

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/cilium/ebpf/asm"
)

// codeWord is one instruction as it stands in a section.
type codeWord struct {
	// at is its place in the section, in bytes.
	at         uint64
	op, source byte
	// constant is that of both halves of a wide instruction.
	constant int64
}

// codeWords walks the instructions of a function that begins at a place of its
// section. Wide instructions are one.
func codeWords(body []byte, begin uint64, order binary.ByteOrder) iter.Seq[codeWord] {
	return func(yield func(codeWord) bool) {
		for at := 0; at+asm.InstructionSize <= len(body); at += asm.InstructionSize {
			w := codeWord{at: begin + uint64(at), op: body[at], source: sourceRegister(body[at+1], order)}
			low := order.Uint32(body[at+4:])
			w.constant = int64(int32(low))
			if w.op == opLoad64 {
				if at += asm.InstructionSize; at+asm.InstructionSize <= len(body) {
					w.constant = int64(uint64(low) | uint64(order.Uint32(body[at+4:]))<<32)
				}
			}
			if !yield(w) {
				return
			}
		}
	}
}

// place is where a function begins.
type place struct {
	section elf.SectionIndex
	at      uint64
}

// linker counts what linking makes of an object's functions, by the rules of the
// parser: each program gets its own copy of every function that it reaches.
// Functions are told apart by their names, as there; where two have the same, what
// they have is added up, and the parser rejects the object later.
type linker struct {
	f       *elf.File
	symbols []elf.Symbol
	named   relocations
	// size and refers are of a function: its instructions and those it refers to.
	index  map[string]int32
	size   []uint64
	refers [][]int32
	// entry are the functions that are programs.
	entry []bool
	at    map[place]string
}

func newLinker(f *elf.File, symbols, functions []elf.Symbol, named relocations) *linker {
	l := &linker{f: f, symbols: symbols, named: named, index: map[string]int32{}, at: map[place]string{}}
	for _, fn := range functions {
		i, ok := l.index[fn.Name]
		if !ok {
			i = int32(len(l.size))
			l.index[fn.Name] = i
			l.size, l.refers, l.entry = append(l.size, 0), append(l.refers, nil), append(l.entry, false)
		}
		l.size[i] = sum(l.size[i], fn.Size/asm.InstructionSize)
		l.entry[i] = l.entry[i] || f.Sections[fn.Section].Name != ".text"
		if fn.Name != "" && (elf.ST_TYPE(fn.Info) != elf.STT_NOTYPE || elf.ST_BIND(fn.Info) != elf.STB_LOCAL) {
			l.at[place{fn.Section, fn.Value}] = fn.Name
		}
	}
	return l
}

// read notes what an instruction of a function refers to.
func (l *linker) read(fn elf.Symbol, w codeWord) {
	target := ""
	if symbol, ok := l.named[fn.Section][w.at]; ok {
		if symbol == 0 || int(symbol) > len(l.symbols) {
			return
		}
		s := l.symbols[symbol-1]
		target = s.Name
		if elf.ST_TYPE(s.Info) == elf.STT_SECTION {
			at := uint64(w.constant)
			if w.op == opCall {
				at = uint64(w.constant+1) * asm.InstructionSize
			}
			target = l.at[place{s.Section, at}]
		}
	} else if w.op == opCall && w.source == sourceCall || w.op == opLoad64 && w.source == sourceFunction {
		// A jump to before the section counts as one to its beginning.
		at := max(w.constant*asm.InstructionSize+int64(w.at+asm.InstructionSize), 0)
		target = l.at[place{fn.Section, uint64(at)}]
	}
	if to, ok := l.index[target]; ok {
		from := l.index[fn.Name]
		l.refers[from] = append(l.refers[from], to)
	}
}

// linked counts the programs, the instructions of every function once, and those
// of the programs with their copies, up to a limit.
func (l *linker) linked(most uint64) (programs int, once, copied uint64) {
	for i := range l.size {
		once = sum(once, max(l.size[i], 1))
	}
	seen := make([]int32, len(l.size))
	var pending []int32
	for i := range l.size {
		if !l.entry[i] {
			continue
		}
		programs++
		copied = sum(copied, l.size[i])
		pending = append(pending[:0], l.refers[i]...)
		for len(pending) > 0 && copied <= most {
			last := len(pending) - 1
			to := pending[last]
			if pending = pending[:last]; seen[to] == int32(i+1) {
				continue
			}
			seen[to] = int32(i + 1)
			copied = sum(copied, max(l.size[to], 1))
			pending = append(pending, l.refers[to]...)
		}
	}
	return programs, once, copied
}

// checkLinked bounds what linking makes of the functions.
func (l *linker) checkLinked(opts Options) error {
	programs, once, copied := l.linked(uint64(opts.MaxInstructions))
	if sum(once, copied) <= uint64(opts.MaxInstructions) {
		return nil
	}
	return &Rejection{
		Rule:   "bytecode/too-many-instructions",
		Object: "object",
		Reason: fmt.Sprintf("its %d programs, each with a copy of every function that it calls, have more than %d instructions", programs, opts.MaxInstructions),
		Fix:    "split it into several objects",
	}
}
