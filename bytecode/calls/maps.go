package calls

import (
	"fmt"
	"slices"
)

// MapRow is what types of maps have in common.
type MapRow struct {
	// Types are cilium/ebpf's names of the types.
	Types []string
	// Bound is what bounds the memory of a map.
	Bound string
	// Why completes "map … of type …", where a namespace may not have one; empty where it may.
	Why string
	// Proof is a test, or a function of the kernel's source with its file.
	Proof string
}

// MapRows returns the types of maps. A type that it does not have is denied to a namespace.
func MapRows() []MapRow { return slices.Clone(mapTypes) }

var mapTypes = []MapRow{
	{[]string{"Hash", "LRUHash", "PerCPUHash", "LRUCPUHash", "LPMTrie", "Array", "PerCPUArray", "Queue", "Stack", "BloomFilter", "StackTrace"},
		"its entries, with BPF_F_NO_PREALLOC, too", "", "TestMapMemoryAgreesWithTheKernel"},
	{[]string{"RingBuf", "UserRingbuf", "PerfEventArray", "Arena"}, "its size", "", "TestMapMemoryAgreesWithTheKernel"},
	{[]string{"ProgramArray", "ArrayOfMaps", "HashOfMaps", "CGroupArray"}, "its entries, which are programs and maps of the application", "",
		"TestMapMemoryAgreesWithTheKernel"},
	{[]string{"SkStorage", "InodeStorage", "TaskStorage", "CgroupStorage", "CGroupStorage", "PerCPUCGroupStorage"},
		"nothing: one value for each socket, inode, task or cgroup",
		"takes memory of the agent for each socket, inode, task or cgroup, and nothing bounds how many there are",
		"bpf_local_storage_update, kernel/bpf/bpf_local_storage.c; TestStorageIsUnbounded"},
	{[]string{"DevMap", "DevMapHash"}, "its entries", "holds devices of the agent's network namespace, which is the node's",
		"dev_map_update_elem, kernel/bpf/devmap.c: current->nsproxy->net_ns"},
	{[]string{"CPUMap"}, "its entries, each with a thread of the kernel and a queue of up to 16,384 packets",
		"has the kernel begin a thread on a CPU for each entry, which works for the namespace at the cost of all", "__cpu_map_entry_alloc, kernel/bpf/cpumap.c"},
	{[]string{"SockMap", "SockHash", "ReusePortSockArray", "XSKMap"}, "its entries, and what the kernel keeps of each socket",
		"holds sockets, for programs that no hook of a namespace attaches", "sk_psock_init, net/core/skmsg.c; TestNoHookOfANamespaceOffersThem"},
	{[]string{"StructOpsMap"}, "its entry", "replaces functions of the kernel for all", "kernel/bpf/bpf_struct_ops.c"},
}

// DeniedMap returns why a namespace may not have a map of a type; empty where it may. It completes
// "map … of type …".
func DeniedMap(mapType string) string {
	for _, row := range mapTypes {
		if slices.Contains(row.Types, mapType) {
			return row.Why
		}
	}
	return "is not known to take memory within its size and to stay in its namespace"
}

// FlagRow is a flag of map_flags.
type FlagRow struct {
	// Bit is its value in include/uapi/linux/bpf.h, and Name its name there.
	Bit  uint32
	Name string
	// Does is what it asks for.
	Does string
	// Why completes "map … has the flag …, which …", where a namespace may not have it; empty where it may.
	Why string
	// Proof is a test, or a function of the kernel's source with its file.
	Proof string
}

// FlagRows returns the flags. One that it does not have is denied to a namespace.
func FlagRows() []FlagRow { return slices.Clone(mapFlags) }

var mapFlags = []FlagRow{
	{1 << 0, "BPF_F_NO_PREALLOC", "memory for each entry when it is made", "", "TestMapMemoryAgreesWithTheKernel"},
	{1 << 1, "BPF_F_NO_COMMON_LRU", "a list of each CPU's own for what was used last", "", "TestMapMemoryAgreesWithTheKernel"},
	{1 << 3, "BPF_F_RDONLY", "that user space only reads", "", "map_get_sys_perms, kernel/bpf/syscall.c"},
	{1 << 4, "BPF_F_WRONLY", "that user space only writes", "", "map_get_sys_perms, kernel/bpf/syscall.c"},
	{1 << 5, "BPF_F_STACK_BUILD_ID", "files and offsets in place of the addresses of a task's own stack", "",
		"stack_map_get_build_id_offset, kernel/bpf/stackmap.c: current->mm"},
	{1 << 7, "BPF_F_RDONLY_PROG", "that programs only read", "", "check_map_access_type, kernel/bpf/verifier.c"},
	{1 << 8, "BPF_F_WRONLY_PROG", "that programs only write", "", "check_map_access_type, kernel/bpf/verifier.c"},
	{1 << 10, "BPF_F_MMAPABLE", "memory that user space may map", "", "TestMapMemoryAgreesWithTheKernel"},
	{1 << 12, "BPF_F_INNER_MAP", "maps of any number of entries in a map of maps", "", "array_map_meta_equal, kernel/bpf/arraymap.c"},
	{1 << 2, "BPF_F_NUMA_NODE", "memory of one NUMA node", "takes memory of one NUMA node, at the cost of what runs there",
		"bpf_map_area_alloc, kernel/bpf/syscall.c"},
	{1 << 6, "BPF_F_ZERO_SEED", "keys in known buckets",
		"lets those who choose keys put all entries in one bucket, so that each look-up takes a CPU of the node for long",
		"lookup_elem_raw, kernel/bpf/hashtab.c: hashrnd is 0; TestKeysOfOneHashTakeNoMemory"},
	{1 << 17, "BPF_F_SEGV_ON_FAULT", "a signal for who touches a page that is not there", "has the kernel kill the process that maps it, such as the agent, " +
		"for a page that is not there", "arena_vm_fault, kernel/bpf/arena.c"},
}

// DeniedFlags returns those of the flags of a map that a namespace may not have, by their names, and why. It completes "map … has the flag …,
// which …".
func DeniedFlags(flags uint32) map[string]string {
	all := map[string]string{}
	for bit := uint32(1); bit != 0; bit <<= 1 {
		if flags&bit == 0 {
			continue
		}
		i := slices.IndexFunc(mapFlags, func(f FlagRow) bool { return f.Bit == bit })
		switch {
		case i < 0:
			all[fmt.Sprintf("%#x", bit)] = "is not known to stay within the map"
		case mapFlags[i].Why != "":
			all[mapFlags[i].Name] = mapFlags[i].Why
		}
	}
	return all
}
