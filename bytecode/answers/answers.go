// Package answers has the one table of what a namespace's program on traffic may answer to the kernel, and finds in a program's instructions
// the answers that it does not get. It is pure, and decides nothing: the gate warns of them, and the agent bounds what it loads.
package answers

import (
	"slices"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Answers of include/uapi/linux/pkt_cls.h and, for TCX, of include/uapi/linux/bpf.h. Pass and Redirect have the same numbers in both.
const (
	Next     = -1
	Pass     = 0
	Shot     = 2
	Stolen   = 4
	Redirect = 7
	Trap     = 8
)

// Drops are the answers for which a namespace's program drops the packet; for all others, the next program runs.
func Drops() []int64 { return []int64{Shot, Stolen, Redirect, Trap} }

// lost are the answers that become others on TCX or clsact, each a bit of a set: of the rest, the kernel makes the same itself.
func lost() []int64 { return []int64{Pass, Stolen, Redirect, Trap} }

// set is which of the lost answers a register may be. What is not known is none.
type set uint8

func setOf(number int64) set {
	if i := slices.Index(lost(), number); i >= 0 {
		return 1 << i
	}
	return 0
}

// state is what registers may be.
type state [asm.RFP + 1]set

// passes is how often each instruction may be followed, on average. Of a program that takes more, nothing is known.
const passes = 16

// walk follows a linked program. It takes jumps as they come, but for those that compare an answer with a constant.
type walk struct {
	insns asm.Instructions
	// index leads from the kernel's count of instructions to insns, -1 inside of a wide one; offsets leads back.
	index, offsets []int
	// functions are where functions begin by name, and of is the function that each instruction is in.
	functions map[string]int
	of        []int
	before    []state
	seen      []bool
	work      []int
	// returns are by the beginning of a function.
	returns map[int]set
}

// Lost returns the constants that a program on traffic may answer and that a namespace's does not get, in ascending order. insns are those of the
// program and of all functions that it reaches, the program's first.
func Lost(insns asm.Instructions) (all []int64) {
	n := len(insns)
	w := &walk{insns: insns, functions: map[string]int{}, before: make([]state, n), seen: make([]bool, n), returns: map[int]set{}}
	of := 0
	for i := range insns {
		if symbol := insns[i].Symbol(); symbol != "" {
			w.functions[symbol], of = i, i
		}
		w.of, w.offsets = append(w.of, of), append(w.offsets, len(w.index))
		w.index = append(w.index, i)
		for range insns[i].Width() - 1 {
			w.index = append(w.index, -1)
		}
	}
	w.reach(0, state{})
	for budget := passes*n + 64; len(w.work) > 0; budget-- {
		if budget == 0 {
			return nil
		}
		i := w.work[len(w.work)-1]
		w.work = w.work[:len(w.work)-1]
		w.follow(i)
	}
	for i, number := range lost() {
		if w.returns[0]&(1<<i) != 0 {
			all = append(all, number)
		}
	}
	return all
}

// reach adds what registers may be before an instruction.
func (w *walk) reach(i int, s state) {
	if i >= len(w.insns) {
		return
	}
	joined := w.before[i]
	for r := range joined {
		joined[r] |= s[r]
	}
	if w.seen[i] && joined == w.before[i] {
		return
	}
	w.before[i], w.seen[i] = joined, true
	w.work = append(w.work, i)
}

// follow does what an instruction does to the registers, and continues with those that may be next.
func (w *walk) follow(i int) {
	ins, s := &w.insns[i], w.before[i]
	switch class := ins.OpCode.Class(); {
	case class.IsJump():
		w.jump(i, ins, s)
		return
	case class.IsALU():
		s[ins.Dst] = moved(ins, s)
	case class == asm.LdXClass, ins.OpCode.IsDWordLoad():
		s[ins.Dst] = 0
	case class == asm.LdClass:
		// A load of the packet, which clobbers registers as a call does.
		s = called(s, 0)
	case class == asm.StXClass && ins.OpCode.Mode() == asm.AtomicMode:
		s[ins.Src], s[asm.R0] = 0, 0
	}
	w.reach(i+1, s)
}

// moved is what the target of an operation may be: known of moves alone. A constant that CO-RE relocates is not known.
func moved(ins *asm.Instruction, s state) set {
	switch {
	case ins.OpCode.ALUOp() != asm.Mov || btf.CORERelocationMetadata(ins) != nil:
		return 0
	case ins.OpCode.Source() == asm.RegSource:
		return s[ins.Src]
	}
	return setOf(ins.Constant)
}

// called is what registers may be after a call that returns one of a set.
func called(s state, returned set) state {
	for r := asm.R0; r <= asm.R5; r++ {
		s[r] = 0
	}
	s[asm.R0] = returned
	return s
}

func (w *walk) jump(i int, ins *asm.Instruction, s state) {
	switch op := ins.OpCode.JumpOp(); op {
	case asm.Exit:
		w.returned(w.of[i], s[asm.R0])
	case asm.Call:
		var returned set
		if f, ok := w.functions[ins.Reference()]; ok && ins.IsFunctionCall() {
			w.reach(f, state{})
			returned = w.returns[f]
		}
		w.reach(i+1, called(s, returned))
	default:
		taken, not := s, s
		if ins.OpCode.Source() == asm.ImmSource {
			switch op {
			case asm.JEq:
				taken[ins.Dst], not[ins.Dst] = setOf(ins.Constant), s[ins.Dst]&^setOf(ins.Constant)
			case asm.JNE:
				taken[ins.Dst], not[ins.Dst] = s[ins.Dst]&^setOf(ins.Constant), setOf(ins.Constant)
			}
		}
		distance := int(ins.Offset)
		if op == asm.Ja && ins.OpCode.Class() == asm.Jump32Class {
			distance = int(ins.Constant)
		}
		if to := w.offsets[i] + 1 + distance; to >= 0 && to < len(w.index) && w.index[to] >= 0 {
			w.reach(w.index[to], taken)
		}
		if op != asm.Ja {
			w.reach(i+1, not)
		}
	}
}

// returned notes what a function may return, and follows the calls of functions again where that is new.
func (w *walk) returned(f int, answer set) {
	if w.returns[f]|answer == w.returns[f] {
		return
	}
	w.returns[f] |= answer
	for i := range w.insns {
		if ins := &w.insns[i]; w.seen[i] && ins.IsFunctionCall() {
			if to, ok := w.functions[ins.Reference()]; ok && to == f {
				w.work = append(w.work, i)
			}
		}
	}
}
