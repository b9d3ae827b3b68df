package bytecode

import (
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/hook"
)

// firstKernel is where the extended BPF of today begins: maps, verifier and
// the bpf system call, with socket filters to use them.
const firstKernel = "3.19"

// needs are features and the kernels they came with.
type needs []KernelNeed

// add notes a need once. An empty kernel means that it is not known.
func (n *needs) add(kernel, feature, program string) {
	need := KernelNeed{Kernel: kernel, Feature: feature, Program: program}
	if kernel == "" || slices.Contains(*n, need) {
		return
	}
	*n = append(*n, need)
}

// lowest is the newest kernel that any need asks for, and the needs that ask
// for it, sorted.
func (n needs) lowest() (string, []KernelNeed) {
	kernel, reasons := firstKernel, []KernelNeed{}
	for _, need := range n {
		switch {
		case Older(kernel, need.Kernel):
			kernel, reasons = need.Kernel, []KernelNeed{need}
		case kernel == need.Kernel:
			reasons = append(reasons, need)
		}
	}
	sort.Slice(reasons, func(i, j int) bool {
		a, b := reasons[i], reasons[j]
		if a.Feature != b.Feature {
			return a.Feature < b.Feature
		}
		return a.Program < b.Program
	})
	return kernel, reasons
}

// Older reports whether kernel a came before b: major.minor, whatever follows, such
// as a release as uname -r has it.
func Older(a, b string) bool {
	aMajor, aMinor := version(a)
	bMajor, bMinor := version(b)
	return aMajor < bMajor || aMajor == bMajor && aMinor < bMinor
}

// version reads major.minor; what is no number counts as 0.
func version(s string) (major, minor int) {
	left, right, _ := strings.Cut(s, ".")
	if end := strings.IndexFunc(right, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		right = right[:end]
	}
	major, _ = strconv.Atoi(left)
	minor, _ = strconv.Atoi(right)
	return major, minor
}

// programTypeKernels are the first kernels of the program types. Source:
// ebpf-docs, data/feature-versions.yaml (BSD-2).
func programTypeKernel(t ebpf.ProgramType) string {
	return map[ebpf.ProgramType]string{
		ebpf.SocketFilter: "3.19", ebpf.Kprobe: "4.1", ebpf.SchedCLS: "4.1", ebpf.SchedACT: "4.1",
		ebpf.TracePoint: "4.7", ebpf.XDP: "4.8", ebpf.PerfEvent: "4.9", ebpf.CGroupSKB: "4.10",
		ebpf.CGroupSock: "4.10", ebpf.LWTIn: "4.10", ebpf.LWTOut: "4.10", ebpf.LWTXmit: "4.10",
		ebpf.SockOps: "4.13", ebpf.SkSKB: "4.14", ebpf.CGroupDevice: "4.15", ebpf.SkMsg: "4.17",
		ebpf.RawTracepoint: "4.17", ebpf.CGroupSockAddr: "4.17", ebpf.LWTSeg6Local: "4.18",
		ebpf.LircMode2: "4.18", ebpf.SkReuseport: "4.19", ebpf.FlowDissector: "4.20",
		ebpf.CGroupSysctl: "5.2", ebpf.RawTracepointWritable: "5.2", ebpf.CGroupSockopt: "5.3",
		ebpf.Tracing: "5.5", ebpf.StructOps: "5.6", ebpf.Extension: "5.6", ebpf.LSM: "5.7",
		ebpf.SkLookup: "5.9", ebpf.Syscall: "5.14", ebpf.Netfilter: "6.4",
	}[t]
}

// mapTypeKernel is the first kernel of a map type; same source.
func mapTypeKernel(t ebpf.MapType) string {
	return map[ebpf.MapType]string{
		ebpf.Hash: "3.19", ebpf.Array: "3.19", ebpf.ProgramArray: "4.2", ebpf.PerfEventArray: "4.3",
		ebpf.PerCPUHash: "4.6", ebpf.PerCPUArray: "4.6", ebpf.StackTrace: "4.6", ebpf.CGroupArray: "4.8",
		ebpf.LRUHash: "4.10", ebpf.LRUCPUHash: "4.10", ebpf.LPMTrie: "4.11", ebpf.ArrayOfMaps: "4.12",
		ebpf.HashOfMaps: "4.12", ebpf.DevMap: "4.14", ebpf.SockMap: "4.14", ebpf.CPUMap: "4.15",
		ebpf.XSKMap: "4.18", ebpf.SockHash: "4.18", ebpf.CGroupStorage: "4.19",
		ebpf.ReusePortSockArray: "4.19", ebpf.PerCPUCGroupStorage: "4.20", ebpf.Queue: "4.20",
		ebpf.Stack: "4.20", ebpf.SkStorage: "5.2", ebpf.DevMapHash: "5.4", ebpf.StructOpsMap: "5.6",
		ebpf.RingBuf: "5.8", ebpf.InodeStorage: "5.10", ebpf.TaskStorage: "5.11",
		ebpf.BloomFilter: "5.16", ebpf.UserRingbuf: "6.1", ebpf.CgroupStorage: "6.2", ebpf.Arena: "6.9",
	}[t]
}

// flagReadOnlyProg is BPF_F_RDONLY_PROG.
const flagReadOnlyProg = 1 << 7

// programNeeds are the needs of a program apart from its instructions.
func programNeeds(s *ebpf.ProgramSpec, row hook.Hook) needs {
	var n needs
	n.add(programTypeKernel(s.Type), "program type "+s.Type.String(), s.Name)
	if row.Name != "" {
		n.add(row.MinKernel, "hook "+row.Name, s.Name)
	}
	if s.Flags&flagSleepable != 0 {
		n.add("5.10", "sleepable programs", s.Name)
		if s.Type == ebpf.Kprobe {
			n.add("6.0", "sleepable uprobes", s.Name)
		}
	}
	if s.Flags&flagXDPFrags != 0 {
		n.add("5.18", "XDP fragments", s.Name)
	}
	switch s.AttachType {
	case ebpf.AttachXDPDevMap:
		n.add("5.8", "programs for entries of device maps", s.Name)
	case ebpf.AttachXDPCPUMap:
		n.add("5.9", "programs for entries of CPU maps", s.Name)
	}
	// 4096 was the limit for everybody until 5.2 raised it for the privileged.
	if s.Instructions.Size() > 4096*asm.InstructionSize {
		n.add("5.2", "more than 4096 instructions", s.Name)
	}
	return n
}

// mapFlagKernels are the flags that loaders cannot leave out; same source.
func mapFlagKernels() []struct {
	flag            uint32
	kernel, feature string
} {
	return []struct {
		flag            uint32
		kernel, feature string
	}{
		{flagNoPrealloc, "4.6", "map flag BPF_F_NO_PREALLOC"},
		{1 << 1, "4.10", "map flag BPF_F_NO_COMMON_LRU"},
		{1 << 2, "4.14", "map flag BPF_F_NUMA_NODE"},
		{1 << 3, "4.15", "map flag BPF_F_RDONLY"},
		{1 << 4, "4.15", "map flag BPF_F_WRONLY"},
		{1 << 5, "4.17", "map flag BPF_F_STACK_BUILD_ID"},
		{1 << 6, "5.0", "map flag BPF_F_ZERO_SEED"},
		{flagReadOnlyProg, "5.2", "map flag BPF_F_RDONLY_PROG"},
		{1 << 8, "5.2", "map flag BPF_F_WRONLY_PROG"},
		{1 << 9, "5.4", "map flag BPF_F_CLONE"},
		{flagMmapable, "5.5", "map flag BPF_F_MMAPABLE"},
		{1 << 11, "5.10", "map flag BPF_F_PRESERVE_ELEMS"},
		{1 << 12, "5.10", "map flag BPF_F_INNER_MAP"},
		{1 << 13, "6.4", "map flag BPF_F_LINK"},
		{1 << 17, "6.9", "map flag BPF_F_SEGV_ON_FAULT"},
		{1 << 18, "6.9", "map flag BPF_F_NO_USER_CONV"},
	}
}

// mapNeeds are the needs of a map.
func mapNeeds(name string, m *ebpf.MapSpec) needs {
	var n needs
	n.add(mapTypeKernel(m.Type), "map type "+m.Type.String(), name)
	if strings.HasPrefix(name, ".") {
		n.add("5.2", "global variables", name)
	}
	for _, f := range mapFlagKernels() {
		if m.Flags&f.flag != 0 {
			n.add(f.kernel, f.feature, name)
		}
	}
	return n
}

// instruction adds what a single instruction needs.
func (n *needs) instruction(ins *asm.Instruction, program string) {
	op := ins.OpCode
	switch class := op.Class(); {
	case ins.IsFunctionCall():
		n.add("4.16", "calls between BPF functions", program)
	case ins.IsLoadOfFunctionPointer():
		n.add("5.13", "callbacks", program)
	case ins.IsKfuncCall():
		n.add("5.13", "kfuncs", program)
	case class == asm.StXClass && op.Mode() == asm.AtomicMode:
		n.atomic(op.AtomicOp(), program)
	case class == asm.LdXClass && op.Mode() == asm.MemSXMode:
		n.add("6.6", "sign-extending loads (-mcpu=v4)", program)
	case class.IsALU():
		n.arithmetic(ins, program)
	case class.IsJump():
		n.jump(ins, program)
	}
}

// atomic adds what an atomic operation needs: all but a plain add came later.
func (n *needs) atomic(op asm.AtomicOp, program string) {
	const acquireRelease = 1 << 16
	switch {
	case op == asm.AddAtomic:
	case op&acquireRelease != 0:
		n.add("6.15", "load-acquire and store-release", program)
	default:
		n.add("5.12", "atomic operations beyond add", program)
	}
}

// arithmetic adds what an ALU instruction needs.
func (n *needs) arithmetic(ins *asm.Instruction, program string) {
	switch ins.OpCode.ALUOp() {
	case asm.SDiv, asm.SMod, asm.MovSX8, asm.MovSX16, asm.MovSX32:
		n.add("6.6", "signed division and moves (-mcpu=v4)", program)
	case asm.Swap:
		if ins.OpCode.Class() == asm.ALU64Class {
			n.add("6.6", "unconditional byte swaps (-mcpu=v4)", program)
		}
	}
}

// jump adds what a jump needs.
func (n *needs) jump(ins *asm.Instruction, program string) {
	op := ins.OpCode.JumpOp()
	switch {
	case op == asm.Call || op == asm.Exit:
	case op == asm.JCOND:
		n.add("6.9", "may_goto", program)
	case op == asm.Ja && ins.OpCode.Class() == asm.Jump32Class:
		n.add("6.6", "long jumps (-mcpu=v4)", program)
	case ins.OpCode.Class() == asm.Jump32Class:
		n.add("5.1", "32-bit jumps (-mcpu=v3)", program)
	}
	if ins.Offset < 0 && op != asm.Call && op != asm.Exit && op != asm.JCOND {
		n.add("5.3", "bounded loops", program)
	}
}
