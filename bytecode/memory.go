package bytecode

import (
	"math"
	"math/bits"
	"strings"

	"github.com/cilium/ebpf"
)

// pageSize is what most machines have; arm64 and ppc64 kernels with 64 KiB
// pages round up further.
const pageSize = 4096

// Sizes of the kernel's own structures on 64-bit machines, rounded up to
// something that holds for 6.1 to 6.18 with usual debug options off.
const (
	mapHeader    = 512 // struct bpf_map and what surrounds it
	htabHeader   = 896 // struct bpf_htab
	htabElem     = 48  // struct htab_elem
	htabBucket   = 16  // struct bucket
	htabLocks    = 8   // HASHTAB_MAP_LOCK_COUNT ints per CPU, until 6.16
	pointer      = 8
	trieNode     = 36 // struct lpm_trie_node, less four bytes of its key
	devHashEntry = 64 // struct bpf_dtab_netdev
	cpuMapEntry  = 256
	sockElem     = 40 // struct bpf_shtab_elem
	stackBucket  = 24 // struct stack_map_bucket
)

// Flags of map_flags that change what a map costs, from
// include/uapi/linux/bpf.h.
const (
	flagNoPrealloc = 1 << 0
	flagMmapable   = 1 << 10
)

// Resized is the map with another number of entries, as a definition may ask
// for, and the memory that takes on a machine with that many possible CPUs.
func (m Map) Resized(entries uint32, cpus int) Map {
	m.MaxEntries = entries
	m.MemoryBytes = MapMemory(m.spec(), cpus)
	return m
}

// spec is the map as the library has it.
func (m Map) spec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: m.Name, Type: mapType(m.Type), KeySize: m.KeySize, ValueSize: m.ValueSize, MaxEntries: m.MaxEntries, Flags: m.Flags,
		MapExtra: m.Extra}
}

// mapType finds a map type by cilium/ebpf's name of it. A name it does not have
// stays unknown.
func mapType(name string) ebpf.MapType {
	for t := ebpf.Hash; t <= ebpf.Arena; t++ {
		if t.String() == name {
			return t
		}
	}
	return ebpf.UnspecifiedMap
}

// unboundedBy is what has a value each of a map of a type: its number bounds the map's memory, and
// nothing of the object does. Empty for maps of entries.
func unboundedBy(t ebpf.MapType) string {
	switch t {
	case ebpf.SkStorage:
		return "sockets"
	case ebpf.InodeStorage:
		return "inodes"
	case ebpf.TaskStorage:
		return "tasks"
	case ebpf.CgroupStorage, ebpf.CGroupStorage, ebpf.PerCPUCGroupStorage:
		return "cgroups"
	}
	return ""
}

// MapMemory estimates what the kernel charges for a map filled to its last entry, in
// bytes, on a machine with that many possible CPUs; see Map.MemoryBytes.
func MapMemory(m *ebpf.MapSpec, cpus int) uint64 { return mapMemory(m, uint64(max(cpus, 1))) }

// mapMemory estimates what the kernel charges for a map filled to its last
// entry, in bytes, on a machine with that many possible CPUs. It follows the
// map_mem_usage callbacks of kernel/bpf, and counts 4 KiB pages.
//
// Maps whose entries live elsewhere count as their table alone: the inner maps
// of a map of maps, and storage on sockets, tasks, inodes and cgroups, whose
// number the object does not bound. An unknown type counts as the bytes of its
// keys and values on every CPU.
func mapMemory(m *ebpf.MapSpec, cpus uint64) uint64 {
	key, value, entries := uint64(m.KeySize), uint64(m.ValueSize), uint64(m.MaxEntries)
	switch m.Type {
	case ebpf.Array, ebpf.ProgramArray, ebpf.PerfEventArray, ebpf.CGroupArray, ebpf.ArrayOfMaps:
		return arrayMemory(m, cpus)
	case ebpf.PerCPUArray:
		return sum(mapHeader, product(entries, sum(pointer, product(roundUp(value, 8), cpus))))
	case ebpf.Hash, ebpf.LRUHash, ebpf.HashOfMaps, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		return hashMemory(m, cpus)
	case ebpf.LPMTrie:
		// A full trie of n entries has up to n-1 nodes in between, which have no
		// value and which the kernel does not report. A key begins with the
		// prefix's length, which nodes keep for themselves.
		node := sum(trieNode, key)
		return sum(mapHeader, product(entries, sum(node, value)), product(entries, node))
	case ebpf.RingBuf, ebpf.UserRingbuf:
		size := uint64(RingBytes(m.MaxEntries, pageSize))
		return sum(mapHeader, 3*pageSize, size, product(2*size/pageSize+3, pointer))
	case ebpf.Queue, ebpf.Stack:
		return sum(mapHeader, product(entries+1, value))
	case ebpf.BloomFilter:
		return sum(mapHeader, bloomBytes(m))
	case ebpf.StackTrace:
		return sum(mapHeader, product(powerOfTwo(entries), pointer), product(entries+cpus, sum(stackBucket, value)))
	case ebpf.DevMap, ebpf.XSKMap, ebpf.SockMap, ebpf.ReusePortSockArray:
		return sum(mapHeader, product(entries, pointer))
	case ebpf.CPUMap:
		return sum(mapHeader, product(entries, pointer+cpuMapEntry))
	case ebpf.DevMapHash:
		return sum(mapHeader, product(powerOfTwo(entries), pointer), product(entries, devHashEntry))
	case ebpf.SockHash:
		return sum(mapHeader, product(powerOfTwo(entries), htabBucket), product(entries, sum(sockElem, key)))
	case ebpf.Arena:
		return sum(mapHeader, product(entries, pageSize))
	case ebpf.SkStorage, ebpf.InodeStorage, ebpf.TaskStorage, ebpf.CgroupStorage:
		return sum(mapHeader, product(powerOfTwo(cpus), htabBucket))
	case ebpf.CGroupStorage, ebpf.PerCPUCGroupStorage:
		return mapHeader
	case ebpf.StructOpsMap:
		return sum(2*pageSize, product(2, value))
	default:
		return sum(mapHeader, product(entries, product(sum(key, value), cpus)))
	}
}

// RingBytes is the size in bytes that a ring of an object has on a kernel with pages of
// that size, a power of two. The kernel takes nothing but a power of two of whole pages, so
// the next larger one is used, as by libbpf. Zero stays zero, and so does what is too large
// to be rounded up: the kernel denies both.
func RingBytes(size, page uint32) uint32 {
	if size == 0 || size > 1<<31 {
		return size
	}
	return max(uint32(powerOfTwo(uint64(size))), page)
}

// arrayMemory is array_map_mem_usage: eight-byte slots in one allocation,
// whole pages where user space may map them. Data sections are made mappable
// when they are loaded, so they count as such.
func arrayMemory(m *ebpf.MapSpec, cpus uint64) uint64 {
	entries := uint64(m.MaxEntries)
	if m.Type == ebpf.PerfEventArray && entries == 0 {
		entries = cpus
	}
	elements := product(entries, roundUp(uint64(m.ValueSize), 8))
	if m.Type != ebpf.Array {
		elements = product(entries, pointer)
	}
	if m.Flags&flagMmapable != 0 || strings.HasPrefix(m.Name, ".") {
		return sum(pageSize, roundUp(elements, pageSize))
	}
	return sum(mapHeader, elements)
}

// hashMemory is htab_map_mem_usage. Preallocated maps hold an extra element
// per CPU, and LRU maps without a common list round up to the CPUs; those
// without preallocation pay a list node for each element.
func hashMemory(m *ebpf.MapSpec, cpus uint64) uint64 {
	perCPU := m.Type == ebpf.PerCPUHash || m.Type == ebpf.LRUCPUHash
	entries, value := uint64(m.MaxEntries), roundUp(uint64(m.ValueSize), 8)
	element := sum(htabElem, roundUp(uint64(m.KeySize), 8), value)
	if perCPU {
		element = sum(htabElem, roundUp(uint64(m.KeySize), 8), pointer, product(value, cpus))
	}
	if m.Flags&flagNoPrealloc != 0 {
		element = sum(element, pointer)
		if perCPU {
			element = sum(element, 2*pointer)
		}
	}
	return sum(
		htabHeader,
		product(powerOfTwo(entries), htabBucket),
		product(cpus, htabLocks*4+pointer),
		product(entries+cpus, element),
	)
}

// bloomBytes is the bitmap of a bloom filter: as many bits as entries times
// hash functions over ln 2 (7/5), up to a power of two, in the kernel's 32-bit
// steps (bloom_map_alloc).
func bloomBytes(m *ebpf.MapSpec) uint64 {
	const most = 1 << 29
	hashes := m.MapExtra & 0xf
	if hashes == 0 {
		hashes = 5
	}
	bitmap := uint64(m.MaxEntries) * hashes
	if bitmap > math.MaxUint32 {
		return most
	}
	if bitmap = bitmap / 5 * 7; bitmap > 1<<31 {
		return most
	}
	return max(powerOfTwo(bitmap), 64) / 8
}

// powerOfTwo rounds up to a power of two, which is how the kernel sizes tables.
func powerOfTwo(n uint64) uint64 {
	if n <= 1 {
		return 1
	}
	if n > 1<<63 {
		return math.MaxUint64
	}
	return 1 << bits.Len64(n-1)
}

// roundUp rounds up to a multiple of a power of two; what does not fit stays
// at the greatest number.
func roundUp(n, to uint64) uint64 {
	if n > math.MaxUint64-to {
		return math.MaxUint64
	}
	return (n + to - 1) &^ (to - 1)
}

// sum adds, and stays at the greatest number where the sum does not fit: a map
// too large to count must not look small.
func sum(terms ...uint64) uint64 {
	var total uint64
	for _, t := range terms {
		var carry uint64
		total, carry = bits.Add64(total, t, 0)
		if carry != 0 {
			return math.MaxUint64
		}
	}
	return total
}

// product multiplies, and stays at the greatest number likewise.
func product(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high != 0 {
		return math.MaxUint64
	}
	return low
}
