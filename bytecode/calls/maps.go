package calls

import "slices"

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
