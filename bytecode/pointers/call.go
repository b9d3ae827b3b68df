package pointers

import (
	"slices"

	"github.com/cilium/ebpf/asm"
)

// call does what a call does: of a function of the program, of a helper, or of a kfunc.
func (w *walk) call(s *state, ins *asm.Instruction, from, at int) {
	returned := value{memory: Foreign}
	switch {
	case ins.OpCode.Source() == asm.RegSource:
		s.lose()
	case ins.Src == asm.R0:
		if argument := callback(asm.BuiltinFunc(ins.Constant)); argument != 0 {
			w.share(s)
			w.callbacks(s, asm.BuiltinFunc(ins.Constant), s.registers[argument].memory != function)
		}
		w.tell(s, ins.Constant)
		w.copies(s, ins.Constant, at)
		returned.memory = w.Helper(ins.Constant)
	case ins.Src == asm.PseudoKfuncCall:
		w.share(s)
		w.callbacks(s, kfunc, slices.ContainsFunc(s.registers[asm.R1:asm.R6], func(v value) bool { return v.memory == Foreign }))
		returned.memory = w.Kfunc(ins.Reference())
	default:
		f, ok := w.named[ins.Reference()]
		if ins.Src != asm.PseudoCall || !ok {
			s.lose()
			break
		}
		w.share(s)
		returned = w.into(f, arguments(s), from)
	}
	s.forget(returned)
}

// copies notes a call of a helper that copies memory which is not the program's own.
func (w *walk) copies(s *state, id int64, at int) {
	if w.Copied == nil {
		return
	}
	for _, i := range w.Copied(id) {
		if memory := s.registers[int(asm.R1)+i].memory; memory == Foreign || memory == described {
			w.finds(at)
		}
	}
}

// finds notes an instruction that reads what is not the program's own.
func (w *walk) finds(at int) {
	if w.finding && (w.found < 0 || at < w.found) {
		w.found = at
	}
}

// tell passes on a call of a helper.
func (w *walk) tell(s *state, id int64) {
	if !w.finding || w.Called == nil {
		return
	}
	var passed [5]Passed
	for i, v := range arguments(s) {
		if passed[i].Memory = v.memory; v.memory == Number {
			passed[i].Number = int(v.n)
		}
	}
	w.Called(id, passed)
}

// share forgets what the stack holds where a function of the program that is called may have a
// pointer to it, and functions write pointers to memory that is not their own stack.
func (w *walk) share(s *state) {
	if !w.clobbers {
		return
	}
	for r := asm.R1; r <= asm.R5; r++ {
		if m := s.registers[r].memory; m == stack || m == Foreign {
			s.lose()
			return
		}
	}
}

// arguments are the registers of a call as the callee sees them.
func arguments(s *state) [5]value {
	var all [5]value
	for i := range all {
		all[i] = outside(s.registers[int(asm.R1)+i])
	}
	return all
}

// into enters a function of the program, and returns what is known of what it returns.
func (w *walk) into(f int, args [5]value, from int) value {
	if !w.finding {
		var s state
		copy(s.registers[asm.R1:], args[:])
		w.enter(w.functions[f].place, s)
		w.functions[f].callers[from] = true
	}
	return w.functions[f].returns
}

// kfunc stands for any kfunc among the helpers that take callbacks.
const kfunc = asm.BuiltinFunc(0)

// callback is the register in which a helper takes a function that it calls; 0 for other helpers.
func callback(helper asm.BuiltinFunc) asm.Register {
	switch helper {
	case asm.FnLoop, asm.FnForEachMapElem, asm.FnTimerSetCallback, asm.FnUserRingbufDrain:
		return asm.R2
	case asm.FnFindVma:
		return asm.R3
	}
	return 0
}

// callbacks enters the functions that are passed to a helper, with the arguments that it
// calls them with (kernel/bpf/verifier.c, set_…_callback_state). Where it may be a function of
// which the walk lost track, it enters all that are values, with anything.
func (w *walk) callbacks(s *state, helper asm.BuiltinFunc, lost bool) {
	foreign, own := value{memory: Foreign}, value{memory: Own}
	anything := [5]value{foreign, foreign, foreign, foreign, foreign}
	if lost {
		for _, f := range w.taken {
			_ = w.into(f, anything, 0)
		}
	}
	args := arguments(s)
	for r := asm.R1; r <= asm.R5; r++ {
		v := s.registers[r]
		if v.memory != function {
			continue
		}
		passed := anything
		switch helper {
		case asm.FnLoop:
			passed = [5]value{{}, args[2]}
		case asm.FnForEachMapElem:
			passed = [5]value{foreign, own, own, args[2]}
		case asm.FnUserRingbufDrain:
			passed = [5]value{own, args[2]}
		case asm.FnTimerSetCallback:
			passed = [5]value{foreign, own, own}
		case asm.FnFindVma:
			passed = [5]value{foreign, foreign, args[3]}
		}
		_ = w.into(int(v.n), passed, 0)
	}
}
