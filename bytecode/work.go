package bytecode

import (
	"math"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Work is what the kernel has to do for a program beyond verifying it: it replaces some instructions
// by several, one after the other, and moves all that follow each time (bpf_patch_insn_data in
// kernel/bpf/core.c). Figures are upper bounds, for kernels up to 6.18 of amd64 and arm64.
type Work struct {
	// Translated is how many instructions the kernel makes of the program, in its own count.
	Translated int
	// Rewrites is how many instructions it replaces by several.
	Rewrites int
	// Jumps is how many jumps there are: it may find that some lead nowhere, and takes them out.
	Jumps int
	// Functions counts the program and those that it reaches.
	Functions int
	// Constants is how many instructions have one, a load of 64 bits counted twice. A kernel that blinds
	// constants replaces them, too.
	Constants int
}

// What a rewrite, a jump and everything else costs for each instruction of the program, as
// docs/performance.md measures it: the other passes over a program together cost as much as 20 rewrites.
const passesCost, jumpsPerRewrite = 20, 10

// What a blinded constant makes of its instruction (bpf_jit_blind_insn in kernel/bpf/core.c), and how
// many such replacements cost as much as a rewrite of the verifier's: they move the instructions alone,
// and nothing that the verifier knows of them.
const mostBlinded, blindedPerRewrite = 4, 16

// MaxLoadCost is the greatest Cost of all programs together that a namespace's application loads: about two seconds
// of the kernel's time, in which no other long load of the node begins.
const MaxLoadCost = 32_000_000

// MaxMapCost is the greatest MapCost of all maps together that a namespace's application has made: about three and a half
// seconds, in which no other long load begins. A node of 256 CPUs makes two ordinary maps with values per CPU within it.
const MaxMapCost = 2 * MaxLoadCost

// nsPerMove is how long the kernel takes for each instruction that it moves, on a busy machine.
const nsPerMove = 55

// LoadTime is about how long the kernel takes to load what has a Cost.
func LoadTime(cost uint64) time.Duration {
	return time.Duration(min(product(cost, nsPerMove), math.MaxInt64)).Round(100 * time.Millisecond)
}

// What making a map takes, in nanoseconds (docs/performance.md): for each value of a map with values per CPU, which the
// kernel allocates one by one, for each CPU of such a value, for each bucket of a map that is made without its entries, and
// for a byte by as many as there are in a nanosecond.
const nsPerValue, nsPerCPU, nsPerBucket, bytesPerNs = 600, 50, 10, 4

// nsPerArena is what making an arena takes: the kernel makes its pages when a program or a process asks for them.
const nsPerArena = 1_000_000

// MapCost is what making a map takes the kernel on a machine with that many possible CPUs, as a Work.Cost. Nothing
// ends it, since the kernel looks for no signal meanwhile.
func MapCost(m *ebpf.MapSpec, cpus int) uint64 {
	entries := uint64(m.MaxEntries)
	switch {
	case m.Type == ebpf.LPMTrie:
		return 0
	case m.Type == ebpf.Arena:
		return nsPerArena / nsPerMove
	case m.Flags&flagNoPrealloc != 0:
		return product(entries, nsPerBucket) / nsPerMove
	}
	ns := MapMemory(m, cpus) / bytesPerNs
	switch m.Type {
	case ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		ns = sum(ns, product(entries, sum(nsPerValue, product(nsPerCPU, uint64(max(cpus, 1))))))
	}
	return ns / nsPerMove
}

// MakingCost is the MapCost of the map.
func (m Map) MakingCost(cpus int) uint64 { return MapCost(m.spec(), cpus) }

// Prefixed is the work with what Skep puts before a program of a namespace: a scope guard, a bound of
// what it reads, and zeroes in the stack of each function.
func (w Work) Prefixed() Work {
	const guard, rewrites, jumps, stack = 512, 24, 64, 64
	w.Translated += guard + stack*w.Functions
	w.Rewrites += rewrites
	w.Jumps += jumps
	return w
}

// Blinded is the work on a kernel whose sysctl net.core.bpf_jit_harden is 2: after the verifier, its
// compiler replaces each instruction that has a constant by several, so that no user can place machine
// code by constants.
func (w Work) Blinded() Work {
	w.Translated += (mostBlinded - 1) * w.Constants
	w.Rewrites += (w.Constants + blindedPerRewrite - 1) / blindedPerRewrite
	w.Constants = 0
	return w
}

// Plus is the work for both as one program.
func (w Work) Plus(other Work) Work {
	return Work{w.Translated + other.Translated, w.Rewrites + other.Rewrites, w.Jumps + other.Jumps, w.Functions + other.Functions,
		w.Constants + other.Constants}
}

// Moves is how often the kernel moves the program: once for each rewrite, and for some jumps.
func (w Work) Moves() int { return w.Rewrites + w.Jumps/jumpsPerRewrite }

// Cost is about how many instructions the kernel moves. See LoadTime.
func (w Work) Cost() uint64 { return CostOf(w.Translated, w.Moves()) }

// CostOf is the Cost of a program of so many Translated instructions and so many Moves.
func CostOf(translated, moves int) uint64 {
	return product(uint64(translated), sum(passesCost, uint64(moves)))
}

// WorkOf counts the work for a linked program of a type.
func WorkOf(t ebpf.ProgramType, insns asm.Instructions) Work {
	// What the kernel puts before a program, such as for writes to packets.
	const prologue = 16
	w := Work{Translated: prologue, Rewrites: 1, Functions: 1}
	converted := conversions(t, insns)
	for i := range insns {
		ins := &insns[i]
		if i > 0 && ins.Symbol() != "" {
			w.Functions++
		}
		if isBranch(ins) {
			w.Jumps++
		}
		made := becomes(ins)
		if converted[i] {
			made = mostConverted
		}
		if made > 1 {
			w.Rewrites++
		}
		w.Translated += max(made, int(ins.Width()))
		w.Constants += constants(ins, made)
	}
	return w
}

// constants is how many instructions with a constant there may be in what the kernel makes of one: every
// second, of several.
func constants(ins *asm.Instruction, made int) int {
	op := ins.OpCode
	switch class := op.Class(); {
	case made > 1:
		return (made + 1) / 2
	case class == asm.StClass, op.IsDWordLoad():
		return int(ins.Width())
	case class.IsALU(), isBranch(ins):
		if op.Source() == asm.ImmSource {
			return 1
		}
	}
	return 0
}

// isBranch reports whether an instruction is a jump that may be taken out.
func isBranch(ins *asm.Instruction) bool {
	op := ins.OpCode.JumpOp()
	return ins.OpCode.Class().IsJump() && op != asm.Call && op != asm.Exit
}

// Sizes of what the kernel makes of one instruction.
const (
	// mostConverted is of a load or store of a field of the context or a socket: bpf_convert_tstamp_read
	// in net/core/filter.c makes 8, and a narrow load has 2 more.
	mostConverted = 10
	// mostDivided is of a division by a register, and mostOld of a load by the instructions of classic BPF.
	mostDivided, mostOld = 10, 8
	// mostGuarded is of may_goto, mostCast of a cast to an arena.
	mostGuarded, mostCast = 10, 4
	// mostCalled is of a call of a kfunc, and of what is not known.
	mostCalled = 10
)

// becomes is how many instructions the kernel makes of one, at most; 1 where it does not rewrite it.
func becomes(ins *asm.Instruction) int {
	op := ins.OpCode
	switch class := op.Class(); {
	case class.IsALU():
		return arithmeticBecomes(ins)
	case class == asm.LdClass && !op.IsDWordLoad():
		return mostOld
	case isNarrowExchange(ins):
		// The result is extended to 64 bits (opt_subreg_zext_lo32_rnd_hi32).
		return 2
	case !class.IsJump():
		return 1
	case op.JumpOp() == asm.JCOND:
		return mostGuarded
	case op.JumpOp() != asm.Call || ins.IsFunctionCall():
		return 1
	case !ins.IsBuiltinCall():
		return mostCalled
	}
	h, ok := helperByID(ins.Constant)
	if !ok {
		return mostCalled
	}
	return max(inlined()[h.Name], 1)
}

// isNarrowExchange reports whether an instruction compares and exchanges 32 bits.
func isNarrowExchange(ins *asm.Instruction) bool {
	return ins.OpCode.Class() == asm.StXClass && ins.OpCode.Mode() == asm.AtomicMode && ins.OpCode.AtomicOp() == asm.CmpXchg && ins.OpCode.Size() == asm.Word
}

func arithmeticBecomes(ins *asm.Instruction) int {
	if ins.OpCode.Source() != asm.RegSource {
		return 1
	}
	switch ins.OpCode.ALUOp() {
	case asm.Div, asm.Mod, asm.SDiv, asm.SMod:
		return mostDivided
	case asm.Mov:
		if ins.Offset == 1 {
			return mostCast
		}
	}
	return 1
}

// inlined is what the kernel makes of calls of helpers that it replaces by instructions
// (do_misc_fixups, optimize_bpf_loop and the map_gen_lookup of maps).
func inlined() map[string]int {
	return map[string]int{
		"bpf_map_lookup_elem": 10, "bpf_map_lookup_percpu_elem": 10, "bpf_tail_call": 6, "bpf_loop": 24,
		"bpf_jiffies64": 4, "bpf_get_smp_processor_id": 4, "bpf_get_current_task": 3, "bpf_get_current_task_btf": 3,
		"bpf_get_func_arg": 10, "bpf_get_func_ret": 6, "bpf_get_func_arg_cnt": 3, "bpf_get_func_ip": 4, "bpf_get_branch_snapshot": 14,
		"bpf_kptr_xchg": 4, "bpf_timer_set_callback": 5, "bpf_per_cpu_ptr": 4, "bpf_this_cpu_ptr": 4,
		"bpf_task_storage_get": 3, "bpf_sk_storage_get": 3, "bpf_inode_storage_get": 3, "bpf_cgrp_storage_get": 3,
	}
}
