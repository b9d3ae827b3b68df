package pointers

import (
	"github.com/cilium/ebpf/asm"
)

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
		return number(ins.Constant)
	}
	// A variable of the kernel.
	return value{memory: Foreign}
}

// number is a number that an instruction gives.
func number(n int64) value {
	if n <= 0 || n >= anywhere {
		return value{}
	}
	return value{Number, int16(n)}
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
		return number(ins.Constant)
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
	case dst.memory == stack && isConstant && dst.n != anywhere:
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
	case op == asm.Sub:
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
	if base.n == anywhere || n < -8*slots || n >= 0 {
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
		case !known:
			return value{memory: Foreign}
		case whole:
			return s.words[i]
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
	if v.memory == Number {
		// A helper may write another number there.
		v = value{}
	}
	if base.memory != stack {
		w.spills = w.spills || !isNumber(v) && size(ins) == 8
		return
	}
	i, known, whole := word(base, ins)
	switch {
	case !known && !isNumber(v):
		s.lose()
	case !known:
	case whole:
		s.words[i] = v
	default:
		s.words[i] = value{}
	}
}

// lose forgets what the stack holds.
func (s *state) lose() {
	for i := range s.words {
		s.words[i] = value{memory: Foreign}
	}
}

// acquireRelease is set in the operations that load with acquire and store with release.
const acquireRelease = 1 << 16

// atomic does what an operation on memory does to registers: they get numbers, but for a
// load, which is one like any other.
func (w *walk) atomic(s *state, ins *asm.Instruction, at int) {
	switch op := ins.OpCode.AtomicOp(); {
	case op&acquireRelease != 0:
		loaded := w.load(s, ins, join(s.registers[ins.Src], s.registers[ins.Dst]), at)
		s.registers[ins.Dst] = join(s.registers[ins.Dst], loaded)
	case op == asm.CmpXchg:
		s.registers[asm.R0] = value{}
	case op != asm.AddAtomic:
		s.registers[ins.Src] = value{}
	}
}
