package bytecode

import (
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"
)

// mayGoto is what RepeatsBy calls the instruction.
const mayGoto = "may_goto"

// repeats reports whether a helper or kfunc runs a part of the program as often as a number
// says, or as something has entries. The verifier walks that part once.
func repeats(name string) bool {
	return slices.Contains([]string{"bpf_loop", "bpf_for_each_map_elem", "bpf_user_ringbuf_drain"}, name) ||
		strings.HasPrefix(name, "bpf_iter_") && strings.HasSuffix(name, "_next")
}

// finishRepeats says what the program repeats without the verifier walking each round.
func (p *inspected) finishRepeats(insns asm.Instructions) {
	f := &p.facts
	for _, name := range slices.Concat(f.Helpers, f.Kfuncs) {
		if repeats(name) {
			f.RepeatsBy = append(f.RepeatsBy, name)
		}
	}
	if slices.ContainsFunc(insns, func(i asm.Instruction) bool { return i.OpCode.JumpOp() == asm.JCOND }) {
		f.RepeatsBy = append(f.RepeatsBy, mayGoto)
	}
	slices.Sort(f.RepeatsBy)
}
