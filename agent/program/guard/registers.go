package guard

import (
	"errors"
	"runtime"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// boundedRead is the function that BoundReads adds, by its symbol and in its type information.
const boundedRead, boundedReadType = Prefix + "registers", "skep_read_registers"

// registersSize is how many bytes the kernel saves of a task's registers, by GOARCH: struct pt_regs
// of x86-64, and that of arm64 up to orig_x0.
func registersSize() map[string]int32 { return map[string]int32{"amd64": 168, "arm64": 280} }

// BoundReads has every call of bpf_probe_read_kernel in the program and in its functions read
// nothing but the registers that the current task had when it entered the kernel: those that
// bpf_usdt_arg and BPF_KSYSCALL read. A call for anything else fails, as one for an address without
// memory does: it returns an error, and clears its destination.
//
// A call becomes one of a function that is added to the program. It takes a frame, which the kernel
// counts as 32 bytes of stack at most and one of eight calls of functions in each other.
func BoundReads(spec *ebpf.ProgramSpec) error {
	return boundReads(spec, registersSize()[runtime.GOARCH])
}

// boundReads has the program read that many bytes of the registers, from the first one on.
func boundReads(spec *ebpf.ProgramSpec, size int32) error {
	if size == 0 && slices.ContainsFunc(spec.Instructions, func(ins asm.Instruction) bool {
		return ins.IsBuiltinCall() && asm.BuiltinFunc(ins.Constant) == asm.FnProbeReadKernel
	}) {
		return errors.New("bound what " + spec.Name + " reads of the kernel: where the registers of tasks lie is not known for " + runtime.GOARCH)
	}
	return substitute(spec, asm.FnProbeReadKernel, added{boundedRead, readerType(), reader(size)})
}

// reader is a function with the arguments and the result of bpf_probe_read_kernel. Its address is
// compared, and not subtracted, since the verifier takes no pointer from a number. Of an address
// outside it makes 0, which is no address of the kernel: so the helper clears the destination.
func reader(size int32) asm.Instructions {
	const fail, read = 12, 13
	less := func(op asm.JumpOp, a, b asm.Register, at, to int16) asm.Instruction {
		return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(op).SetSource(asm.RegSource), Dst: a, Src: b, Offset: to - at - 1}
	}
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.Mov.Reg(asm.R7, asm.R2),
		asm.Mov.Reg(asm.R8, asm.R3),
		asm.FnGetCurrentTaskBtf.Call(),
		asm.Mov.Reg(asm.R1, asm.R0),
		asm.FnTaskPtRegs.Call(),
		{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JGT).SetSource(asm.ImmSource), Dst: asm.R7, Constant: int64(size), Offset: fail - 6 - 1},
		less(asm.JLT, asm.R8, asm.R0, 7, fail),
		asm.Add.Imm(asm.R0, size),
		asm.Sub.Reg(asm.R0, asm.R7),
		less(asm.JGT, asm.R8, asm.R0, 10, fail),
		{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Ja), Offset: read - 11 - 1},
		asm.Mov.Imm(asm.R8, 0),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Mov.Reg(asm.R3, asm.R8),
		asm.FnProbeReadKernel.Call(),
		asm.Return(),
	}
}

// readerType is the type of that function in C.
func readerType() *btf.Func {
	long, size := &btf.Int{Name: "long", Size: 8, Encoding: btf.Signed}, &btf.Int{Name: "unsigned int", Size: 4}
	pointer := &btf.Pointer{Target: &btf.Void{}}
	return &btf.Func{Name: boundedReadType, Linkage: btf.StaticFunc, Type: &btf.FuncProto{Return: long,
		Params: []btf.FuncParam{{Name: "to", Type: pointer}, {Name: "size", Type: size}, {Name: "from", Type: pointer}}}}
}
