package chain

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// exit is the dispatcher's label for returning the verdict in R0. It cannot
// clash with a member's symbol, which all begin with a number.
const exit = "exit"

// Verdicts of enum xdp_action.
const (
	xdpAborted = 0
	xdpDrop    = 1
	xdpPass    = 2
	xdpTx      = 3
)

// dispatcher generates the chain's main function. R6 keeps the context, R7 the words of the
// members, and R8 the last verdict over the calls, which preserve them.
//
// The stack holds nothing but the key of the one look-up, so that members have
// nearly all of it.
func dispatcher(members []Member, calls []string, owned bool) asm.Instructions {
	insns := asm.Instructions{
		btf.WithFuncMetadata(asm.Mov.Reg(asm.R6, asm.R1), entryFunc(programName)).
			WithSymbol(programName).WithSource(asm.Comment("skep: run the members in order")),
	}
	if owned {
		// Nothing reads it; the kernel lists maps in the order of such loads.
		insns = append(insns, asm.LoadMapPtr(asm.R0, 0).WithReference(ownerName))
	}
	insns = append(insns,
		asm.Mov.Imm(asm.R8, xdpAborted),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, 0).WithReference(CountersName),
		asm.FnMapLookupElem.Call(),
		// The look-up of key 0 cannot miss; the verifier wants to be told, and
		// what would follow is XDP_ABORTED.
		asm.JEq.Imm(asm.R0, 0, exit),
		asm.Mov.Reg(asm.R7, asm.R0),
		// Where all members are off, there is no program.
		asm.Mov.Imm(asm.R8, xdpPass),
	)
	for i, m := range members {
		next := exit
		if i < len(members)-1 {
			next = before(i + 1)
		}
		insns = append(insns, call(i, m.Key, calls[i], next)...)
		if i < len(members)-1 {
			insns = append(insns, proceed(m.ProceedOn, next, final(members, i))...)
		}
	}
	return append(insns, asm.Mov.Reg(asm.R0, asm.R8).WithSymbol(exit), asm.Return())
}

// call runs a member, unless it is switched off, and counts its verdict.
func call(i int, key, entry, next string) asm.Instructions {
	known := fmt.Sprintf("verdict-%d", i)
	at := int16(i * memberWords * wordSize)
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R7, int16(switchAt(i)), asm.DWord).WithSymbol(before(i)).WithSource(asm.Comment("skep: member " + key)),
		asm.JNE.Imm(asm.R1, 0, next),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall, Constant: -1}.WithReference(entry),
		asm.Mov.Reg(asm.R8, asm.R0),
		// The kernel reads 32 bits of it. One that enum xdp_action does not have is counted
		// behind the others.
		asm.Mov.Reg32(asm.R1, asm.R0),
		asm.JLT.Imm(asm.R1, otherVerdict, known),
		asm.Mov.Imm(asm.R1, otherVerdict),
		asm.LSh.Imm(asm.R1, 3).WithSymbol(known),
		asm.Add.Reg(asm.R1, asm.R7),
		asm.LoadMem(asm.R2, asm.R1, at, asm.DWord),
		asm.Add.Imm(asm.R2, 1),
		asm.StoreMem(asm.R1, at, asm.R2, asm.DWord),
	}
}

// final is the label of the first member that sees what member i of a tenant lets through; empty where none does.
func final(members []Member, i int) string {
	at := slices.IndexFunc(members, func(m Member) bool { return m.Final })
	if members[i].Tenant == "" || at <= i {
		return ""
	}
	return before(at)
}

// proceed leaves the chain unless the verdict in R0 is one of the mask. A
// verdict that enum xdp_action does not have never proceeds. Where there is a final member, it
// runs after Pass, and what would send the packet elsewhere drops it.
func proceed(mask uint32, next, final string) asm.Instructions {
	var insns asm.Instructions
	for code := range int32(32) {
		if mask&(1<<code) != 0 {
			insns = append(insns, asm.JEq.Imm32(asm.R0, code, next))
		}
	}
	if final == "" {
		return append(insns, asm.Ja.Label(exit))
	}
	return append(insns, asm.JEq.Imm32(asm.R0, xdpPass, final), asm.JLT.Imm32(asm.R0, xdpTx, exit), asm.Mov.Imm(asm.R8, xdpDrop), asm.Ja.Label(exit))
}

// before is the label of the place where member i is called.
func before(i int) string { return fmt.Sprintf("call-%d", i) }
