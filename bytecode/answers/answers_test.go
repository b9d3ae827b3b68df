package answers_test

import (
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/bytecode/answers"
)

// answer returns a number.
func answer(n int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, n), asm.Return()}
}

// begins has instructions begin a function.
func begins(name string, insns asm.Instructions) asm.Instructions {
	insns[0] = insns[0].WithSymbol(name)
	return insns
}

// jump is a jump over a number of instructions.
func jump(op asm.JumpOp, r asm.Register, value int32, over int16) asm.Instruction {
	return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(op).SetSource(asm.ImmSource), Dst: r, Constant: int64(value), Offset: over}
}

func join(parts ...asm.Instructions) (all asm.Instructions) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// TestWhatAProgramAnswersIsFound on all ways that lead out of it, and nothing is said of what is not known.
func TestWhatAProgramAnswersIsFound(t *testing.T) {
	helper := asm.Instructions{asm.FnGetPrandomU32.Call()}
	call := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall, Constant: -1}.WithReference("f")
	for sentence, c := range map[string]struct {
		insns asm.Instructions
		want  []int64
	}{
		"nothing":                        {nil, nil},
		"the next program":               {answer(answers.Next), nil},
		"a drop":                         {answer(answers.Shot), nil},
		"what the kernel takes for next": {answer(3), nil},
		"a pass":                         {answer(answers.Pass), []int64{0}},
		"what a helper returned":         {append(helper, asm.Return()), nil},
		"one of two": {join(helper, asm.Instructions{jump(asm.JEq, asm.R0, 1, 2)}, answer(answers.Redirect), answer(answers.Pass)),
			[]int64{0, 7}},
		"one of two by one way out": {join(helper, asm.Instructions{asm.Mov.Imm(asm.R6, 8), jump(asm.JGT, asm.R0, 1, 1), asm.Mov.Imm(asm.R6, 4),
			asm.Mov.Reg(asm.R0, asm.R6), asm.Return()}), []int64{4, 8}},
		"what nothing leads to": {append(answer(answers.Next), answer(answers.Pass)...), nil},
		"a computed number":     {asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Add.Imm(asm.R0, 2), asm.Return()}, nil},
		"a number from memory": {asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.StoreImm(asm.RFP, -8, 2, asm.DWord),
			asm.LoadMem(asm.R0, asm.RFP, -8, asm.DWord), asm.Return()}, nil},
		"what a function returns": {join(begins("main", asm.Instructions{call, asm.Return()}), begins("f", answer(answers.Pass))), []int64{0}},
		"what a function returns, unless it is that": {join(begins("main", asm.Instructions{call, jump(asm.JNE, asm.R0, 0, 1), asm.Mov.Imm(asm.R0, -1),
			asm.Return()}), begins("f", answer(answers.Pass))), nil},
		"one of what a function returns": {join(begins("main", asm.Instructions{call, jump(asm.JEq, asm.R0, 0, 1), asm.Return(), asm.Mov.Imm(asm.R0, -1),
			asm.Return()}), begins("f", join(helper, asm.Instructions{jump(asm.JEq, asm.R0, 1, 2)}, answer(answers.Redirect), answer(answers.Pass)))), []int64{7}},
		"a pointer that is none": {join(helper, asm.Instructions{jump(asm.JEq, asm.R0, 0, 1), asm.Mov.Imm(asm.R0, -1), asm.Return()}), []int64{0}},
		"what a program does not return": {join(begins("main", asm.Instructions{asm.Mov.Reg(asm.R1, asm.R2), call, asm.Mov.Imm(asm.R0, -1), asm.Return()}),
			begins("f", answer(answers.Pass))), nil},
	} {
		if diff := cmp.Diff(c.want, answers.Lost(c.insns)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", sentence, diff)
		}
	}
}
