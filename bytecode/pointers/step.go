package pointers

import (
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// isRelocated reports whether a load changes the constant or the offset of an instruction, as the
// type information of the kernel says (CO-RE): what the object has there means nothing.
func isRelocated(ins *asm.Instruction) bool { return btf.CORERelocationMetadata(ins) != nil }

// step does what an instruction does that neither jumps nor calls.
func (w *walk) step(s *state, ins *asm.Instruction, at int) {
	switch class := ins.OpCode.Class(); {
	case class.IsALU():
		s.registers[ins.Dst] = arithmetic(s, ins)
	case class == asm.LdClass && ins.OpCode.IsDWordLoad():
		s.registers[ins.Dst] = w.constant(ins)
	case class == asm.LdClass:
		// The old loads from packets are calls.
		s.forget(value{})
	case class == asm.LdXClass:
		s.registers[ins.Dst] = w.load(s, ins, s.registers[ins.Src], at)
	case class == asm.StClass:
		w.store(s, ins, value{})
	case class == asm.StXClass && ins.OpCode.Mode() == asm.AtomicMode:
		w.atomic(s, ins, at)
	case class == asm.StXClass:
		w.store(s, ins, s.registers[ins.Src])
	}
}

// forget is what any call does to the registers.
func (s *state) forget(returned value) {
	for r := asm.R1; r <= asm.R5; r++ {
		s.registers[r] = value{}
	}
	s.registers[asm.R0] = returned
}

// constant is what a 64-bit load gives.
func (w *walk) constant(ins *asm.Instruction) value {
	switch {
	case ins.Src == asm.PseudoMapValue:
		return value{memory: Own}
	case ins.Src == asm.PseudoFunc:
		if f, ok := w.named[ins.Reference()]; ok && f < anywhere {
			return value{function, int16(f)}
		}
	case ins.Src == asm.PseudoMapFD:
		return value{memory: described}
	case ins.Src == asm.R0 && ins.Reference() == "":
		return number(ins)
	}
	// A variable of the kernel.
	return value{memory: Foreign}
}

// number is the constant that an instruction gives.
func number(ins *asm.Instruction) value {
	if n := ins.Constant; n > 0 && n < anywhere && !isRelocated(ins) {
		return value{Number, int16(n)}
	}
	return value{}
}

// arithmetic is what an operation makes of its target.
func arithmetic(s *state, ins *asm.Instruction) value {
	op, dst := ins.OpCode.ALUOp(), s.registers[ins.Dst]
	src := value{}
	if ins.OpCode.Source() == asm.RegSource {
		src = s.registers[ins.Src]
	}
	switch {
	case op == asm.Mov && ins.OpCode.Source() != asm.RegSource:
		return number(ins)
	case ins.OpCode.Class() == asm.ALUClass, op == asm.Swap, op == asm.Neg:
		return value{}
	case op == asm.Mov:
		if ins.Offset == 1 && ins.OpCode.Source() == asm.RegSource {
			// A pointer into an arena is made of a number (addr_space_cast).
			return value{memory: Own}
		}
		return src
	case op == asm.MovSX8, op == asm.MovSX16, op == asm.MovSX32:
		return value{}
	case op == asm.Add || op == asm.Sub:
		return moved(dst, src, ins, op)
	case isNumber(dst) && isNumber(src):
		return value{}
	}
	return value{memory: Foreign}
}

// moved is a pointer after a sum.
func moved(dst, src value, ins *asm.Instruction, op asm.ALUOp) value {
	isConstant := ins.OpCode.Source() != asm.RegSource
	switch {
	case dst.memory == stack && isConstant && dst.n != anywhere && !isRelocated(ins):
		n := int64(dst.n) + ins.Constant
		if op == asm.Sub {
			n = int64(dst.n) - ins.Constant
		}
		if n < -8*slots || n > 8*slots {
			n = anywhere
		}
		return value{stack, int16(n)}
	case isNumber(src) && isNumber(dst):
		if src.memory == Argument && (dst.memory == Argument || op == asm.Sub) {
			return value{}
		}
		return value{memory: max(src.memory, dst.memory)}
	case isNumber(src):
		if dst.memory == stack {
			dst.n = anywhere
		}
		return dst
	case op == asm.Sub && dst.memory == stack:
		return value{stack, anywhere}
	case op == asm.Sub && isOwn(dst):
		// The distance of two pointers.
		return value{}
	case isNumber(dst):
		if src.memory == stack {
			src.n = anywhere
		}
		return src
	}
	return value{memory: Foreign}
}

// word is the word of the stack that an access touches, and whether it is one whole word.
func word(base value, ins *asm.Instruction) (at int, known, whole bool) {
	n := int(base.n) + int(ins.Offset)
	if base.n == anywhere || n < -8*slots || n >= 0 || isRelocated(ins) {
		return 0, false, false
	}
	return (n + 8*slots) / 8, true, n%8 == 0 && size(ins) == 8
}

// size is how many bytes an access has.
func size(ins *asm.Instruction) int { return ins.OpCode.Size().Sizeof() }

// load is what a load through a pointer gives.
func (w *walk) load(s *state, ins *asm.Instruction, base value, at int) value {
	wide := size(ins) == 8
	switch base.memory {
	case stack:
		i, known, whole := word(base, ins)
		switch {
		case known && whole:
			return s.words[i]
		case !known && wide:
			return value{memory: Foreign}
		}
		return value{}
	case Context:
		if wide || w.Fields == Own {
			return value{memory: w.Fields}
		}
		return value{}
	case Own:
	default:
		w.finds(at)
	}
	if wide {
		return value{memory: Foreign}
	}
	return value{}
}

// store writes a value through a pointer.
func (w *walk) store(s *state, ins *asm.Instruction, v value) {
	base := s.registers[ins.Dst]
	if v.memory == Number || size(ins) < 8 {
		// Of a pointer, less than the whole is a number, and a helper may write another number there.
		v = value{}
	}
	i, known, whole := word(base, ins)
	switch {
	case base.memory == stack && known && whole:
		s.words[i] = v
	case base.memory == stack && known:
		s.words[i] = value{}
	case !isNumber(v):
		w.spills = true
		if base.memory != Own && base.memory != Context {
			// It may be an address of the stack.
			s.lose()
		}
	}
}

// lose forgets what the stack holds.
func (s *state) lose() {
	for i := range s.words {
		s.words[i] = value{memory: Foreign}
	}
}

// The operations that load with acquire have the first bit, those that store with release both.
// Others return what was in memory if they have the last bit.
const (
	acquireRelease = 1 << 16
	release        = 1 << 12
	fetches        = 1 << 8
)

// StoresWithRelease reports whether an atomic operation stores Src at Dst, and does no more.
func StoresWithRelease(ins *asm.Instruction) bool {
	op := ins.OpCode.AtomicOp()
	return op&acquireRelease != 0 && op&release != 0
}

// LoadsWithAcquire reports whether an atomic operation loads Dst from what Src points to, and does no more.
func LoadsWithAcquire(ins *asm.Instruction) bool {
	return ins.OpCode.AtomicOp()&acquireRelease != 0 && !StoresWithRelease(ins)
}

// Fetches returns the register that an atomic operation gives what was in memory at Dst, beside storing there; nil where none.
func Fetches(ins *asm.Instruction) *asm.Register {
	switch op := ins.OpCode.AtomicOp(); {
	case op&acquireRelease != 0:
		return nil
	case op == asm.CmpXchg:
		r0 := asm.R0
		return &r0
	case op&fetches != 0:
		return &ins.Src
	}
	return nil
}

// atomic does what an operation on memory does to registers and to the stack.
func (w *walk) atomic(s *state, ins *asm.Instruction, at int) {
	switch target := Fetches(ins); {
	case StoresWithRelease(ins):
		w.store(s, ins, s.registers[ins.Src])
	case LoadsWithAcquire(ins):
		s.registers[ins.Dst] = w.load(s, ins, s.registers[ins.Src], at)
	case target != nil:
		s.registers[*target] = w.fetched(s, ins, at)
	}
}

// fetched is what an operation returns of memory: a number, or from the stack all that was there.
func (w *walk) fetched(s *state, ins *asm.Instruction, at int) value {
	switch base := s.registers[ins.Dst]; base.memory {
	case Own, Context:
		return value{}
	case stack:
		return w.load(s, ins, base, at)
	}
	return value{memory: Foreign}
}
