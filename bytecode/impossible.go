package bytecode

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Obstacle is why no kernel from 6.1 on takes a program or a map, whatever its configuration.
type Obstacle struct {
	// Reason says what the kernel rejects, Fix what would help.
	Reason string `json:"reason"`
	Fix    string `json:"fix"`
}

// What every kernel allows one program (kernel/bpf/syscall.c, include/linux/bpf.h and bpf_verifier.h).
const (
	maxInstructions = 1_000_000 // BPF_COMPLEXITY_LIMIT_INSNS
	maxFunctions    = 256       // BPF_MAX_SUBPROGS, the program itself included
	maxUsedMaps     = 64        // MAX_USED_MAPS
	maxStack        = 512       // MAX_BPF_STACK, of one function
)

// programObstacles are what no kernel takes, a row each. The verifier walks no code that cannot be
// reached, so of instructions only those count that every run of the program begins with.
var programObstacles = []struct {
	// what is the row's line of docs/impossible.md.
	what string
	find func(p *Program, start entry) (reason, fix string)
}{
	{"more than 1,000,000 instructions, with all functions that it reaches", func(p *Program, _ entry) (string, string) {
		return exceeds(p.Instructions, maxInstructions, "instructions"), "split it into programs that tail call each other, or write loops that are not unrolled"
	}},
	{fmt.Sprintf("more than %d functions, itself included", maxFunctions), func(p *Program, _ entry) (string, string) {
		return exceeds(1+len(p.Subprograms), maxFunctions, "functions"), "inline some (__always_inline), or split it into several programs"
	}},
	{fmt.Sprintf("more than %d maps", maxUsedMaps), func(p *Program, _ entry) (string, string) {
		return exceeds(len(p.Maps), maxUsedMaps, "maps"), "join maps, or split it into several programs"
	}},
	{"type LSM and a licence that is not compatible with the GPL", lsmLicense},
	{fmt.Sprintf("in what every run begins with, a load or store outside of the %d bytes of a function's stack", maxStack), outsideOfStack},
	{"in what every run begins with, a call of a helper for the GPL under another licence", helperLicense},
	{"in what every run begins with, a call of a helper that programs of another type alone have", helperElsewhere},
}

// exceeds says that there are more of something than a program may have.
func exceeds(n, most int, what string) string {
	if n <= most {
		return ""
	}
	return fmt.Sprintf("it has %d %s, and a kernel takes %d of one program", n, what, most)
}

// outsideOfStack finds a use of the stack beyond a function's own.
func outsideOfStack(_ *Program, start entry) (reason, fix string) {
	if start.stack == 0 {
		return "", ""
	}
	return fmt.Sprintf("it uses the stack at %+d, and a function has the %d bytes below its frame pointer", start.stack, maxStack),
		"keep large values in a map of type PERCPU_ARRAY"
}

// lsmLicense: bpf_lsm_verify_prog.
func lsmLicense(p *Program, _ entry) (reason, fix string) {
	if p.Type != ebpf.LSM.String() || p.GPLCompatible {
		return "", ""
	}
	return fmt.Sprintf("its licence is %s, and programs of type LSM need one that is compatible with the GPL", printable(p.License)), licenseFix
}

// licenseFix is how a program gets helpers for the GPL.
const licenseFix = `release it under the GPL, as by char _license[] SEC("license") = "Dual MIT/GPL"`

// helperLicense finds helpers that other licences are not given, where every run of the program reaches them.
func helperLicense(p *Program, start entry) (reason, fix string) {
	denied := slices.DeleteFunc(slices.Clone(p.GPLOnly), func(name string) bool {
		return !slices.ContainsFunc(start.helpers, func(h Helper) bool { return h.Name == name })
	})
	if p.GPLCompatible || len(denied) == 0 {
		return "", ""
	}
	return fmt.Sprintf("it calls %s under the licence %s, and kernels give that only to programs compatible with the GPL",
		strings.Join(denied, ", "), printable(p.License)), licenseFix
}

// ownHelpers are helpers that one type of programs alone has: no other type could use what they do.
var ownHelpers = map[string]ebpf.ProgramType{
	"bpf_xdp_adjust_head": ebpf.XDP, "bpf_xdp_adjust_meta": ebpf.XDP, "bpf_xdp_adjust_tail": ebpf.XDP, "bpf_xdp_load_bytes": ebpf.XDP,
	"bpf_xdp_store_bytes": ebpf.XDP, "bpf_override_return": ebpf.Kprobe,
	"bpf_sock_map_update": ebpf.SockOps, "bpf_sock_hash_update": ebpf.SockOps, "bpf_sock_ops_cb_flags_set": ebpf.SockOps,
	"bpf_load_hdr_opt": ebpf.SockOps, "bpf_store_hdr_opt": ebpf.SockOps, "bpf_reserve_hdr_opt": ebpf.SockOps,
	"bpf_msg_apply_bytes": ebpf.SkMsg, "bpf_msg_cork_bytes": ebpf.SkMsg, "bpf_msg_pull_data": ebpf.SkMsg, "bpf_msg_push_data": ebpf.SkMsg,
	"bpf_msg_pop_data": ebpf.SkMsg, "bpf_sk_select_reuseport": ebpf.SkReuseport,
	"bpf_sysctl_get_name": ebpf.CGroupSysctl, "bpf_sysctl_get_current_value": ebpf.CGroupSysctl,
	"bpf_sysctl_get_new_value": ebpf.CGroupSysctl, "bpf_sysctl_set_new_value": ebpf.CGroupSysctl,
}

// helperElsewhere finds helpers of another type of programs.
func helperElsewhere(p *Program, start entry) (reason, fix string) {
	for _, h := range start.helpers {
		if of, known := ownHelpers[h.Name]; known && p.Type != of.String() && p.Type != ebpf.UnspecifiedProgram.String() {
			return fmt.Sprintf("it calls %s, which programs of type %s alone have, and is of type %s", h.Name, of, p.Type), "build it for a hook of type " + of.String()
		}
	}
	return "", ""
}

// entry is what every run of a program begins with: its instructions up to the first that may go on elsewhere.
type entry struct {
	helpers []Helper
	// stack is a place that it uses outside of its stack, in bytes from the frame pointer; 0 for none.
	stack int16
}

// entryOf reads the instructions that every run begins with.
func entryOf(insns asm.Instructions) (e entry) {
	for i := range insns {
		ins := &insns[i]
		class := ins.OpCode.Class()
		switch {
		case btf.CORERelocationMetadata(ins) != nil:
			return e // it may become another instruction
		case ins.OpCode.JumpOp() == asm.Call && ins.Src == asm.R0 && ins.OpCode.Source() != asm.RegSource:
			if h, known := helperByID(ins.Constant); known {
				e.helpers = append(e.helpers, h)
			}
		case class.IsJump():
			return e
		case class.IsStore() && ins.Dst == asm.RFP, class == asm.LdXClass && ins.Src == asm.RFP:
			if e.stack == 0 && (ins.Offset < -maxStack || ins.Offset > 0) {
				e.stack = ins.Offset
			}
		}
	}
	return e
}

// finishObstacles finds why no kernel takes the program.
func (p *inspected) finishObstacles(insns asm.Instructions) {
	start := entryOf(insns)
	for _, row := range programObstacles {
		if reason, fix := row.find(&p.facts, start); reason != "" {
			p.facts.Obstacles = append(p.facts.Obstacles, Obstacle{reason, fix})
		}
	}
}

// More flags of map_flags.
const (
	flagNoCommonLRU = 1 << 1
	flagReadOnly    = 1 << 3
	flagWriteOnly   = 1 << 4
	flagReadProg    = 1 << 7
	flagWriteProg   = 1 << 8
)

// maxPerCPU is how many bytes one value of a map per CPU has at most, on machines with pages of 64 KiB
// (PCPU_MIN_UNIT_SIZE).
const maxPerCPU = 64 << 10

// maxLocal is more than the bytes of a value that is stored with a socket, an inode, a task or a cgroup
// (BPF_LOCAL_STORAGE_MAX_VALUE_SIZE).
const maxLocal = 1<<16 - 1

// mapDemand is what every kernel asks of maps of some types (the map_alloc_check of each in kernel/bpf and
// net/core). reason is empty where the map meets it. Sizes that are 0 and that the loader has to know are
// OpenSizes' to tell.
type mapDemand struct {
	types []ebpf.MapType
	// what is the row's line of docs/impossible.md.
	what  string
	check func(m Map) (reason, fix string)
}

// byIndex are the types of maps whose keys are numbers of 32 bits.
var (
	byIndex = []ebpf.MapType{ebpf.Array, ebpf.PerCPUArray, ebpf.ProgramArray, ebpf.CGroupArray, ebpf.ArrayOfMaps, ebpf.StackTrace,
		ebpf.DevMap, ebpf.DevMapHash, ebpf.CPUMap, ebpf.XSKMap, ebpf.SockMap, ebpf.ReusePortSockArray}
	local    = []ebpf.MapType{ebpf.SkStorage, ebpf.InodeStorage, ebpf.TaskStorage, ebpf.CgroupStorage}
	unkeyed  = []ebpf.MapType{ebpf.Queue, ebpf.Stack, ebpf.BloomFilter, ebpf.RingBuf, ebpf.UserRingbuf, ebpf.Arena}
	hashes   = []ebpf.MapType{ebpf.Hash, ebpf.PerCPUHash, ebpf.LRUHash, ebpf.LRUCPUHash, ebpf.HashOfMaps, ebpf.SockHash}
	lru      = []ebpf.MapType{ebpf.LRUHash, ebpf.LRUCPUHash}
	perCPU   = []ebpf.MapType{ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.LRUCPUHash}
	anything = []ebpf.MapType(nil)
)

// mapDemands are what no kernel does without, a row each.
var mapDemands = []mapDemand{
	{byIndex, "keys of a size other than 4 bytes", keyOf(4)},
	{[]ebpf.MapType{ebpf.PerfEventArray}, "keys of a size other than 0 or 4 bytes", keyOf(0, 4)},
	{local, "keys of a size other than 4 bytes", keyOf(4)},
	{unkeyed, "keys", keyOf(0)},
	{hashes, "keys without a size", func(m Map) (string, string) {
		return said(m.KeySize == 0, "its keys have no size", "give it a key (__type(key, …))")
	}},
	{[]ebpf.MapType{ebpf.LPMTrie}, "keys of fewer than 5 or more than 260 bytes", func(m Map) (string, string) {
		return said(m.KeySize < 5 || m.KeySize > 260, fmt.Sprintf("its keys have %d bytes", m.KeySize),
			"give it keys of 5 to 260 bytes: four for the length of the prefix, and what it is of")
	}},
	{[]ebpf.MapType{ebpf.ProgramArray, ebpf.CGroupArray, ebpf.XSKMap}, "values of a size other than 4 bytes", valueOf(4)},
	{[]ebpf.MapType{ebpf.PerfEventArray, ebpf.ArrayOfMaps, ebpf.HashOfMaps}, "values of a size other than 0 or 4 bytes", valueOf(0, 4)},
	{[]ebpf.MapType{ebpf.DevMap, ebpf.DevMapHash, ebpf.CPUMap, ebpf.SockMap, ebpf.SockHash, ebpf.ReusePortSockArray}, "values of a size other than 4 or 8 bytes",
		valueOf(4, 8)},
	{[]ebpf.MapType{ebpf.RingBuf, ebpf.UserRingbuf, ebpf.Arena}, "values", valueOf(0)},
	{[]ebpf.MapType{ebpf.StackTrace}, "values that are no multiple of 8 bytes", func(m Map) (string, string) {
		return said(m.ValueSize%8 != 0, fmt.Sprintf("its values have %d bytes", m.ValueSize), "give it values of a multiple of 8 bytes: a word for each frame")
	}},
	{perCPU, fmt.Sprintf("values of more than %d bytes for each CPU", maxPerCPU), func(m Map) (string, string) {
		return said(m.ValueSize > maxPerCPU, fmt.Sprintf("its values have %d bytes for each CPU", m.ValueSize),
			"give it values of at most 32,768 bytes, or a type that is not per CPU")
	}},
	{local, fmt.Sprintf("values of more than %d bytes", maxLocal), func(m Map) (string, string) {
		return said(m.ValueSize > maxLocal, fmt.Sprintf("its values have %d bytes", m.ValueSize), "give it smaller values")
	}},
	{local, "keys or values of a type that the object does not say", func(m Map) (string, string) {
		return said(m.KeyType == "" || m.ValueType == "", "the object does not say of which types its keys and values are",
			"write __type(key, int) and __type(value, …), and build it so: `"+Compile+"`")
	}},
	{local, "a number of entries", func(m Map) (string, string) {
		return said(m.MaxEntries != 0, fmt.Sprintf("it has %d entries", m.MaxEntries), "take max_entries out: there are as many values as what they are stored with")
	}},
	{slices.Concat(local, []ebpf.MapType{ebpf.LPMTrie}), "no flag `BPF_F_NO_PREALLOC`", with(flagNoPrealloc, "BPF_F_NO_PREALLOC")},
	{[]ebpf.MapType{ebpf.Arena}, "no flag `BPF_F_MMAPABLE`", with(flagMmapable, "BPF_F_MMAPABLE")},
	{slices.Concat(byIndex[:2], unkeyed, lru), "the flag `BPF_F_NO_PREALLOC`", without(flagNoPrealloc, "BPF_F_NO_PREALLOC")},
	{slices.Concat(hashes, perCPU, []ebpf.MapType{ebpf.LPMTrie, ebpf.Queue, ebpf.Stack}), "the flag `BPF_F_MMAPABLE`", without(flagMmapable, "BPF_F_MMAPABLE")},
	{[]ebpf.MapType{ebpf.Hash, ebpf.PerCPUHash}, "the flag `BPF_F_NO_COMMON_LRU`", without(flagNoCommonLRU, "BPF_F_NO_COMMON_LRU")},
	{anything, "the flags `BPF_F_RDONLY` and `BPF_F_WRONLY`", without(flagReadOnly|flagWriteOnly, "BPF_F_RDONLY and BPF_F_WRONLY")},
	{anything, "the flags `BPF_F_RDONLY_PROG` and `BPF_F_WRONLY_PROG`", without(flagReadProg|flagWriteProg, "BPF_F_RDONLY_PROG and BPF_F_WRONLY_PROG")},
	{[]ebpf.MapType{ebpf.BloomFilter}, "more than 15 hash functions", func(m Map) (string, string) {
		return said(m.Extra > 15, fmt.Sprintf("it has %d hash functions", m.Extra), "set map_extra to at most 15")
	}},
}

// said is a reason and a fix where a map is wrong.
func said(wrong bool, reason, fix string) (string, string) {
	if !wrong {
		return "", ""
	}
	return reason, fix
}

// keyOf demands keys of one of some sizes in bytes.
func keyOf(sizes ...uint32) func(Map) (string, string) {
	return func(m Map) (string, string) { return oneOf("keys", m.KeySize, sizes) }
}

// valueOf demands values of one of some sizes in bytes. A size of 0 that the loader has to know is
// another fault.
func valueOf(sizes ...uint32) func(Map) (string, string) {
	return func(m Map) (string, string) {
		if _, open := m.OpenSizes(); open {
			return "", ""
		}
		return oneOf("values", m.ValueSize, sizes)
	}
}

// oneOf demands one of some sizes in bytes.
func oneOf(what string, size uint32, sizes []uint32) (string, string) {
	if slices.Contains(sizes, size) {
		return "", ""
	}
	words := strings.Trim(strings.ReplaceAll(fmt.Sprint(sizes), " ", " or "), "[]")
	return fmt.Sprintf("its %s have %d bytes", what, size), fmt.Sprintf("give it %s of %s bytes", what, words)
}

// with demands a flag.
func with(flag uint32, name string) func(Map) (string, string) {
	return func(m Map) (string, string) {
		return said(m.Flags&flag == 0, "it lacks the flag "+name, "add __uint(map_flags, "+name+")")
	}
}

// without denies flags that are all given.
func without(flags uint32, names string) func(Map) (string, string) {
	return func(m Map) (string, string) {
		return said(m.Flags&flags == flags, "it has map_flags "+names, "take that out of map_flags")
	}
}

// Obstacles are why no kernel makes the map; none for the sections of data, which loaders define.
func (m Map) Obstacles() (all []Obstacle) {
	if strings.HasPrefix(m.Name, ".") {
		return nil
	}
	t := mapType(m.Type)
	for _, row := range mapDemands {
		if row.types != nil && !slices.Contains(row.types, t) {
			continue
		}
		if reason, fix := row.check(m); reason != "" {
			all = append(all, Obstacle{reason, fix})
		}
	}
	return all
}
