package bytecode

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// shown is what a value is to the verifier: a number, the context, an address of the stack, or one of a map's value.
type shown struct {
	kind byte // 'n', 'c', 's' or 'm'
	at   int  // of the stack
}

// FuzzContextAccesses runs programs on one way, as the verifier does, and compares: each access through the context must be found.
// Two bytes make an instruction, and the first byte says which branches are taken.
func FuzzContextAccesses(f *testing.F) {
	f.Add([]byte{0, 2, 0x21, 3, 0x12, 4, 0x21, 5, 0x10})
	f.Add([]byte{1, 0, 0x6a, 1, 0x61, 2, 0x61, 7, 0x10, 3, 0x16, 4, 0x10})
	f.Add([]byte{3, 2, 0x21, 8, 0x31, 6, 0x20, 3, 0x13, 5, 0x12})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 3 || len(data) > 200 {
			return
		}
		insns := programOf(data[1:])
		for _, kind := range []ebpf.ProgramType{ebpf.Kprobe, ebpf.SchedCLS} {
			found := contextAccesses(kind, insns)
			for at := range through(insns, data[0]) {
				if !found[at] {
					t.Fatalf("%s: the access at %d is through the context\n%v", kind, at, insns)
				}
			}
		}
	})
}

// programOf makes instructions of registers 0 to 9, and of the words of the stack from -64 to -8.
func programOf(data []byte) asm.Instructions {
	var insns asm.Instructions
	for i := 0; i+1 < len(data); i += 2 {
		dst, src := asm.Register(data[i+1]>>4)%10, asm.Register(data[i+1]&15)%11
		word := -8 * int16(data[i+1]>>4&7+1)
		switch data[i] % 10 {
		case 0:
			insns = append(insns, asm.Mov.Reg(dst, src))
		case 1:
			insns = append(insns, asm.Add.Imm(dst, -8*int32(src&7)))
		case 2:
			insns = append(insns, asm.StoreMem(asm.RFP, word, src, asm.DWord))
		case 3:
			insns = append(insns, asm.LoadMem(src%10, asm.RFP, word, asm.DWord))
		case 4:
			insns = append(insns, asm.StoreMem(dst, -8, src, asm.DWord))
		case 5:
			insns = append(insns, asm.LoadMem(dst, src, -8, asm.DWord))
		case 6:
			insns = append(insns, asm.Xchg.Mem(asm.RFP, src%10, asm.DWord, word))
		case 7:
			insns = append(insns, asm.LoadMapValue(dst, 0, 0).WithReference("m"))
		case 8:
			// Forwards, over one instruction or two.
			insns = append(insns, opcode(0x15, dst, 0, int16(src&1), 0))
		default:
			insns = append(insns, asm.StoreMem(asm.RFP, word, src, asm.Word))
		}
	}
	return append(insns, asm.Mov.Imm(asm.R0, 0), asm.Mov.Imm(asm.R0, 0), asm.Mov.Imm(asm.R0, 0), asm.Return())
}

// through runs a program, and returns where it loads or stores through the context. It ends where the verifier rejects it.
func through(insns asm.Instructions, branches byte) map[int]bool {
	at := map[int]bool{}
	registers, words := map[asm.Register]shown{asm.R1: {kind: 'c'}, asm.RFP: {kind: 's'}}, map[int]shown{}
	for i := 0; i < len(insns); i++ {
		ins := &insns[i]
		base, isAccess := accessed(ins)
		if b := registers[base]; isAccess && b.kind == 'c' {
			at[i] = true
		} else if isAccess && b.kind != 's' && b.kind != 'm' {
			return at
		}
		word := registers[base].at + int(ins.Offset)
		onStack := isAccess && registers[base].kind == 's'
		if onStack && (word >= 0 || word < -512) {
			return at
		}
		switch class := ins.OpCode.Class(); {
		case class.IsJump():
			if ins.OpCode.JumpOp() == asm.Exit {
				return at
			}
			if branches&(1<<(i%8)) != 0 {
				i += int(ins.Offset)
			}
		case ins.OpCode.ALUOp() == asm.Add && class.IsALU():
			v := registers[ins.Dst]
			v.at += int(ins.Constant)
			registers[ins.Dst] = v
		case class.IsALU() && ins.OpCode.Source() == asm.RegSource:
			registers[ins.Dst] = registers[ins.Src]
		case class.IsALU():
			registers[ins.Dst] = shown{}
		case class == asm.LdClass:
			registers[ins.Dst] = shown{kind: 'm'}
		case class == asm.LdXClass:
			registers[ins.Dst] = shown{}
			if onStack {
				registers[ins.Dst] = words[word]
			}
		case onStack && ins.OpCode.Size() != asm.DWord:
			words[word] = shown{}
		case onStack:
			before := words[word]
			words[word] = registers[ins.Src]
			if ins.OpCode.Mode() == asm.AtomicMode {
				registers[ins.Src] = before
			}
		}
	}
	return at
}
