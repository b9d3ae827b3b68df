package guard

import (
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// BoundAnswers has a program on addresses of sockets return nothing but 0 or 1: whether the kernel continues the
// call. By more, one on bind lets a task without the capability have a port below 1024
// (BPF_RET_BIND_NO_CAP_NET_BIND_SERVICE, include/uapi/linux/bpf.h). Programs of other types stay as they are.
func BoundAnswers(spec *ebpf.ProgramSpec) error {
	if spec.Type != ebpf.CGroupSockAddr || len(spec.Instructions) == 0 {
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
	functions[0] = append(main, asm.And.Imm(asm.R0, 1), asm.Return())
	spec.Instructions = slices.Concat(functions...)
	return nil
}
