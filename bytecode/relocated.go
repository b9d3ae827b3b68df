package bytecode

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// checkRelocated rejects an instruction that CO-RE relocates and that no relocation applies to.
// Loaders put a call of no helper in the place of any instruction that reads what the kernel lacks:
// of a jump or a call that they may remove, it is not known what follows it.
func checkRelocated(ins *asm.Instruction, at int) error {
	if btf.CORERelocationMetadata(ins) == nil || takesRelocation(ins) {
		return nil
	}
	return &Rejection{
		Rule:   "bytecode/relocated-instruction",
		Object: fmt.Sprintf("instruction %d", at),
		Reason: "a CO-RE relocation stands at it, and it has neither an offset nor a constant of its own that one could change",
		Fix:    rebuildObject,
	}
}

// takesRelocation reports whether an instruction has an offset into memory or a constant that a
// loader relocates (btf.COREFixup.Apply). What a byte swap has is its width.
func takesRelocation(ins *asm.Instruction) bool {
	switch class := ins.OpCode.Class(); {
	case class == asm.LdXClass, class == asm.StClass, class == asm.StXClass:
		return true
	case class == asm.LdClass:
		return ins.IsConstantLoad(asm.DWord) && ins.Reference() == ""
	case class.IsALU():
		return ins.OpCode.Source() == asm.ImmSource && ins.OpCode.ALUOp() != asm.Swap
	}
	return false
}
