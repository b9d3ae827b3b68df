// Package bytecode reads an eBPF object file and says what it does, without
// loading it: which programs, hooks, helpers, kfuncs, maps and variables it
// has, and which kernel it needs.
//
// It is pure. It reads no file, no network and no kernel; the same bytes give
// the same Facts on every machine. It evaluates nothing: that is package
// policies.
//
// Size: a fifth is the kernel's tables of helpers and kfuncs. The rest is one pass over
// an object, whose parts share what they resolved.
package bytecode

import (
	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/hook"
)

// FactsVersion is the version of the Facts document. It changes when a field
// changes its meaning or goes away; new fields do not change it.
const FactsVersion = "v1"

// Facts is what the bytecode itself says, as opposed to what labels and
// definitions claim. Lists are sorted, so that equal objects give equal JSON.
type Facts struct {
	// Version is FactsVersion.
	Version string `json:"version"`
	// Inspector names the revision of the rules that made the facts, and is
	// part of the key they are remembered by.
	Inspector string `json:"inspector"`
	// License is the object's licence section, or empty.
	License string `json:"license"`
	// ByteOrder is little or big.
	ByteOrder string `json:"byteOrder"`
	// BTF reports whether the object carries type information.
	BTF bool `json:"btf"`
	// CORE reports whether the object has CO-RE relocations, so needs the
	// kernel's BTF to load.
	CORE bool `json:"core"`
	// Programs in the order of their names.
	Programs []Program `json:"programs"`
	// Maps in the order of their names, data sections included. Where a definition is evaluated, they are
	// those that it has loaded; see placement.Loaded.
	Maps []Map `json:"maps"`
	// Variables in the order of their names.
	Variables []Variable `json:"variables"`
	// MemoryBytes is the sum of the maps' MemoryBytes, which maps with UnboundedBy may exceed.
	MemoryBytes uint64 `json:"memoryBytes"`
	// CPUs is the number of possible CPUs that MemoryBytes counts for per-CPU
	// maps.
	CPUs int `json:"cpus"`
	// MinKernel is the lowest mainline kernel that has every feature the object
	// names, as major.minor. It is advice: CO-RE guards and distribution
	// backports lower it, configuration raises it.
	MinKernel string `json:"minKernel"`
	// MinKernelReasons lists the features that set MinKernel.
	MinKernelReasons []KernelNeed `json:"minKernelReasons"`
}

// KernelNeed is a feature and the first mainline kernel that has it.
type KernelNeed struct {
	// Kernel is major.minor.
	Kernel string `json:"kernel"`
	// Feature is, for example, "helper bpf_ringbuf_output" or "map type RingBuf".
	Feature string `json:"feature"`
	// Program is the program or map that needs it.
	Program string `json:"program,omitempty"`
}

// Program is one entry point of the object, with everything it can reach:
// static and global subprograms and callbacks.
type Program struct {
	Name string `json:"name"`
	// Section is the ELF section, as written.
	Section string `json:"section"`
	// Hook is the name in hook.Table that the section implies, or empty.
	Hook string `json:"hook"`
	// Target is what the section says after the hook, or empty.
	Target string `json:"target,omitempty"`
	// Type is cilium/ebpf's name of the program type, such as XDP.
	Type string `json:"type"`
	// AttachType is cilium/ebpf's name of the expected attach type, or empty.
	AttachType string `json:"attachType,omitempty"`
	// Sleepable and Frags are the flags BPF_F_SLEEPABLE and BPF_F_XDP_HAS_FRAGS.
	Sleepable bool `json:"sleepable,omitempty"`
	Frags     bool `json:"frags,omitempty"`
	// Instructions is the number of instructions of the program and all it
	// reaches, each function counted once, as the kernel counts them: 64-bit
	// loads are two.
	Instructions int `json:"instructions"`
	// Translated is how many instructions the kernel makes of them at most, and Rewrites how many of them it
	// replaces by several; see Work.
	Translated int `json:"translated"`
	Rewrites   int `json:"rewrites"`
	// LoadCost is about how many instructions the kernel moves to load the program in a namespace, each time
	// that it is loaded; see Work.Cost and Work.Prefixed.
	LoadCost uint64 `json:"loadCost"`
	// Subprograms are the functions reached by calls and callbacks.
	Subprograms []string `json:"subprograms,omitempty"`
	// Helpers are the kernel's names, such as bpf_map_lookup_elem.
	Helpers []string `json:"helpers"`
	// UnknownHelpers are helper ids this version of Skep has no name for, and
	// -1 for a call whose target cannot be told, such as one by register.
	// Policies fail closed on them.
	UnknownHelpers []int64 `json:"unknownHelpers,omitempty"`
	// Kfuncs are kernel functions called by name.
	Kfuncs []string `json:"kfuncs"`
	// Ksyms are kernel symbols whose address the program takes: variables, or
	// kfuncs it asks for without calling them there.
	Ksyms []string `json:"ksyms,omitempty"`
	// Unresolved are functions the program refers to and the object does not
	// hold. It will not load.
	Unresolved []string `json:"unresolved,omitempty"`
	// Maps the program refers to.
	Maps []string `json:"maps"`
	// License is the licence the kernel is told, from the object.
	License string `json:"license"`
	// GPLCompatible reports whether the kernel counts License as such.
	GPLCompatible bool `json:"gplCompatible"`
	// GPLOnly are the helpers and kfuncs that the kernel gives only to
	// GPL-compatible programs. A joined XDP chain hides this from the kernel.
	GPLOnly []string `json:"gplOnly,omitempty"`
	// Subject is whose doing the program sees where its section has it attached: of the
	// current task alone, of packets, or of any task. An attachment elsewhere has another one:
	// see SubjectAt.
	Subject hook.Subject `json:"subject"`
	// AsyncCallbacks are the helpers and kfuncs by which parts of the program run later, for
	// any task, so that Subject is any and no scope guard holds.
	AsyncCallbacks []string `json:"asyncCallbacks,omitempty"`
	// RepeatsBy are the helpers, kfuncs and instructions (may_goto) by which the program runs
	// parts of it that the verifier walks once as often as a number says or something has entries:
	// its instructions do not bound how long it runs.
	RepeatsBy []string `json:"repeatsBy,omitempty"`
	// ReadsKernelMemory reports whether the program reads memory of the kernel, or of another
	// process, that is not its own and that its hook does not hand out as a value. What is
	// not known counts as reading.
	ReadsKernelMemory bool `json:"readsKernelMemory"`
	// ReadsKernelMemoryBy says how: helpers, kfuncs, variables of the kernel, and the first
	// load through a pointer to it.
	ReadsKernelMemoryBy []string `json:"readsKernelMemoryBy,omitempty"`
	// ReadsRegistersBy says from what the program makes the addresses of all that it reads of
	// the kernel, where that may be registers of the current task: as bpf_usdt_arg and
	// BPF_KSYSCALL do, by bpf_probe_read_kernel alone. It is empty where the program reads
	// nothing or something else. The addresses themselves are not known: a program of a
	// namespace is loaded so that it reads nothing but those registers, and one of the cluster
	// reads what it likes.
	ReadsRegistersBy []hook.Registers `json:"readsRegistersBy,omitempty"`
	// WritesRegisters reports whether the program may write to its context, where that are registers of a
	// task: kernels from 6.18 on let programs of uprobes do so, and the task goes on with what they wrote.
	WritesRegisters bool `json:"writesRegisters,omitempty"`
	// ReadsPacketSocket reports whether the program may load the socket of a packet from its context, by which it
	// sees who sent it.
	ReadsPacketSocket bool `json:"readsPacketSocket,omitempty"`
	// LiftsRightsBy says how the program may give a task what it has no capability for, on a hook of the task's
	// cgroup: a store to a field of its context, an option of a socket, or a value that it returns.
	LiftsRightsBy []string `json:"liftsRightsBy,omitempty"`
	// Answers are the constants that a program on traffic may answer, where a BpfApplication's does not get them: 0 (TCX_PASS), 4
	// (TC_ACT_STOLEN), 7 (TCX_REDIRECT) and 8 (TC_ACT_TRAP). What is not known is not among them.
	Answers []int64 `json:"answers,omitempty"`
	// PoisonedCalls counts calls that CO-RE replaced by 0xbad2310; the verifier
	// rejects them where they are reachable.
	PoisonedCalls int `json:"poisonedCalls,omitempty"`
	// Obstacles are why no kernel loads the program.
	Obstacles []Obstacle `json:"obstacles,omitempty"`
}

// Map is one map of the object.
type Map struct {
	Name string `json:"name"`
	// Type is cilium/ebpf's name of the map type, such as PerCPUArray.
	Type string `json:"type"`
	// KeySize and ValueSize are in bytes, MaxEntries counts entries.
	KeySize    uint32 `json:"keySize"`
	ValueSize  uint32 `json:"valueSize"`
	MaxEntries uint32 `json:"maxEntries"`
	// KeyType and ValueType are the C types from BTF, such as "struct flow"; empty
	// where the object says a size alone, and of data sections.
	KeyType   string `json:"keyType,omitempty"`
	ValueType string `json:"valueType,omitempty"`
	// Flags are the map_flags.
	Flags uint32 `json:"flags,omitempty"`
	// Extra is map_extra: the hash functions of a bloom filter, or an arena's
	// address.
	Extra uint64 `json:"extra,omitempty"`
	// MemoryBytes estimates what the kernel charges for a full map. Of a map with UnboundedBy it is the
	// empty map alone.
	MemoryBytes uint64 `json:"memoryBytes"`
	// UnboundedBy says what has a value of the map each, whose number the map does not bound: sockets,
	// inodes, tasks or cgroups. Empty for a map that MaxEntries bounds.
	UnboundedBy string `json:"unboundedBy,omitempty"`
	// Pinned tells that the object asks for pinning by name, which Skep does in
	// its own directory instead.
	Pinned bool `json:"pinned,omitempty"`
	// Contents are the programs that the object itself puts into a prog array, which it
	// tail calls, or the maps that it puts into a map of maps.
	Contents []MapContent `json:"contents,omitempty"`
	// Inner is what each map in a map of maps is like. The kernel is given one to make it by.
	Inner *InnerMap `json:"inner,omitempty"`
}

// InnerMap is what the maps in a map of maps are like. Its fields are those of Map.
type InnerMap struct {
	Type       string `json:"type"`
	KeySize    uint32 `json:"keySize"`
	ValueSize  uint32 `json:"valueSize"`
	MaxEntries uint32 `json:"maxEntries"`
	Flags      uint32 `json:"flags,omitempty"`
}

// Made are the maps that the kernel makes for the map: itself, and what the maps in it are like.
func (m Map) Made() []Map {
	if m.Inner == nil {
		return []Map{m}
	}
	in := m.Inner
	return []Map{m, {Name: m.Name, Type: in.Type, KeySize: in.KeySize, ValueSize: in.ValueSize, MaxEntries: in.MaxEntries, Flags: in.Flags}}
}

// MapContent is a program or a map that an object puts into one of its maps.
type MapContent struct {
	Index uint32 `json:"index"`
	Name  string `json:"name"`
}

// OpenSizes reports which sizes of the map the object leaves to its loader: the
// kernel rejects zero, and nothing else in the object says how large it is.
func (m Map) OpenSizes() (entries, value bool) {
	switch mapType(m.Type) {
	case ebpf.PerfEventArray, ebpf.CPUMap:
		// One entry for each CPU, as libbpf has it.
	default:
		entries = m.MaxEntries == 0 && unboundedBy(mapType(m.Type)) == ""
	}
	switch mapType(m.Type) {
	case ebpf.RingBuf, ebpf.UserRingbuf, ebpf.Arena:
		// Has no values.
	case ebpf.PerfEventArray, ebpf.ArrayOfMaps, ebpf.HashOfMaps:
		// The loader knows it.
	default:
		value = m.ValueSize == 0
	}
	return entries, value
}

// Variable is a global variable of the object.
type Variable struct {
	Name string `json:"name"`
	// Type is the C type from BTF, such as "__u32" or "struct config".
	Type string `json:"type,omitempty"`
	// Size is in bytes.
	Size uint64 `json:"size"`
	// Section is .rodata, .data, .bss or a section named after one of them.
	Section string `json:"section"`
	// Constant variables are set before loading and never carried over.
	Constant bool `json:"constant"`
}

// WithMaps returns the facts with those of the maps that keep reports, and with what these take.
func (f Facts) WithMaps(keep func(name string) bool) Facts {
	all := f.Maps
	f.Maps, f.MemoryBytes = []Map{}, 0
	for _, m := range all {
		if keep(m.Name) {
			f.Maps, f.MemoryBytes = append(f.Maps, m), sum(f.MemoryBytes, m.MemoryBytes)
		}
	}
	return f
}

// Program returns the program of that name.
func (f *Facts) Program(name string) (Program, bool) {
	for _, p := range f.Programs {
		if p.Name == name {
			return p, true
		}
	}
	return Program{}, false
}
