package guard

import (
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/bytecode/answers"
)

// BoundAnswers has a program of a namespace return no more than it may decide. Programs of other types stay as they are.
//
// On addresses of sockets, that is 0 or 1: whether the kernel continues the call. By more, one on bind lets a task without the
// capability have a port below 1024 (BPF_RET_BIND_NO_CAP_NET_BIND_SERVICE, include/uapi/linux/bpf.h).
//
// On traffic, that is whether the packet is dropped. The next program or filter sees every other one: to clsact, most answers end
// the filters of an interface, and to TCX all but one do (cls_bpf_exec_opcode of net/sched/cls_bpf.c, tcx_run of net/core/dev.c).
// A packet that the program would redirect is dropped, as are those that clsact would consume.
func BoundAnswers(spec *ebpf.ProgramSpec) error {
	switch spec.Type {
	case ebpf.CGroupSockAddr:
		return leaveBy(spec, asm.Instructions{asm.And.Imm(asm.R0, 1), asm.Return()})
	case ebpf.SchedCLS:
		var tail asm.Instructions
		drops := answers.Drops()
		for i, answer := range drops {
			tail = append(tail, asm.Instruction{OpCode: asm.OpCode(asm.Jump32Class).SetJumpOp(asm.JEq).SetSource(asm.ImmSource),
				Dst: asm.R0, Constant: answer, Offset: int16(len(drops) - i + 1)})
		}
		return leaveBy(spec, append(tail, asm.Mov.Imm(asm.R0, answers.Next), asm.Return(), asm.Mov.Imm(asm.R0, answers.Shot), asm.Return()))
	}
	return nil
}

// leaveBy has each way out of a program lead to the instructions of tail.
func leaveBy(spec *ebpf.ProgramSpec, tail asm.Instructions) error {
	if len(spec.Instructions) == 0 {
		return nil
	}
	functions := functionsOf(spec.Instructions)
	main := slices.Clone(functions[0])
	// Where each instruction begins, in words.
	at, end := make([]int, len(main)), 0
	for i := range main {
		at[i], end = end, end+int(main[i].Width())
	}
	for i, ins := range main {
		if !ins.OpCode.Class().IsJump() || ins.OpCode.JumpOp() != asm.Exit {
			continue
		}
		distance := end - at[i] - 1
		if distance > math.MaxInt16 {
			return fmt.Errorf("bound what %s returns: it has %d instructions; split it into smaller programs", spec.Name, len(main))
		}
		to := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Ja), Offset: int16(distance)}
		to.Metadata = ins.Metadata
		main[i] = to
	}
	functions[0] = append(main, tail...)
	spec.Instructions = slices.Concat(functions...)
	return nil
}
