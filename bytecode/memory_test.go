package bytecode

import (
	"math"
	"testing"

	"github.com/cilium/ebpf"
)

func TestMapMemory(t *testing.T) {
	for name, test := range map[string]struct {
		spec ebpf.MapSpec
		cpus uint64
		want uint64
	}{
		"an array has slots of eight bytes":             {ebpf.MapSpec{Type: ebpf.Array, ValueSize: 5, MaxEntries: 10}, 1, mapHeader + 80},
		"CPUs do not matter to it":                      {ebpf.MapSpec{Type: ebpf.Array, ValueSize: 5, MaxEntries: 10}, 64, mapHeader + 80},
		"one per CPU has a slot for each, and pointers": {ebpf.MapSpec{Type: ebpf.PerCPUArray, ValueSize: 5, MaxEntries: 10}, 4, mapHeader + 10*(8+4*8)},
		"a data section is whole pages":                 {ebpf.MapSpec{Name: ".bss", Type: ebpf.Array, ValueSize: 5000, MaxEntries: 1}, 1, 3 * pageSize},
		"a perf event array has an entry per CPU":       {ebpf.MapSpec{Type: ebpf.PerfEventArray}, 16, mapHeader + 16*8},
		"a queue has a slot to spare":                   {ebpf.MapSpec{Type: ebpf.Queue, ValueSize: 10, MaxEntries: 9}, 1, mapHeader + 100},
		"an arena counts its pages":                     {ebpf.MapSpec{Type: ebpf.Arena, MaxEntries: 3}, 1, mapHeader + 3*pageSize},
		"a hash of 3 entries has 4 buckets": {
			ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 3}, 1, htabHeader + 4*16 + 40 + 4*(48+8+8),
		},
		"a type nobody knows counts on every CPU": {ebpf.MapSpec{Type: 77, KeySize: 4, ValueSize: 4, MaxEntries: 10}, 2, mapHeader + 160},
		"what does not fit into 64 bits is the most": {
			ebpf.MapSpec{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: math.MaxUint32, MaxEntries: math.MaxUint32}, 64, math.MaxUint64,
		},
		"the largest bloom filter":            {ebpf.MapSpec{Type: ebpf.BloomFilter, ValueSize: 8, MaxEntries: math.MaxUint32}, 1, mapHeader + 1<<29},
		"a bloom filter just below the limit": {ebpf.MapSpec{Type: ebpf.BloomFilter, ValueSize: 8, MaxEntries: 1 << 31, MapExtra: 1}, 1, mapHeader + 1<<29},
	} {
		if got := mapMemory(&test.spec, test.cpus); got != test.want {
			t.Errorf("%s: %d bytes, want %d", name, got, test.want)
		}
	}
}

func TestMoreEntriesNeverCostLess(t *testing.T) {
	for kind := ebpf.Hash; kind <= ebpf.Arena+1; kind++ {
		last := uint64(0)
		for _, entries := range []uint32{0, 1, 2, 1000, 1 << 20, 1 << 31, math.MaxUint32} {
			spec := ebpf.MapSpec{Type: kind, KeySize: 8, ValueSize: 8, MaxEntries: entries}
			if kind == ebpf.PerfEventArray && entries == 0 {
				continue // 0 means one per CPU
			}
			got := mapMemory(&spec, 128)
			if got < last {
				t.Errorf("%s of %d entries: %d bytes, less than the %d of a smaller one", kind, entries, got, last)
			}
			last = got
		}
	}
}

func TestArithmeticSaturates(t *testing.T) {
	if sum(math.MaxUint64, 1) != math.MaxUint64 || sum(1, 2, 3) != 6 || sum() != 0 {
		t.Error("sum")
	}
	if product(1<<33, 1<<33) != math.MaxUint64 || product(6, 7) != 42 {
		t.Error("product")
	}
	if roundUp(math.MaxUint64-2, 8) != math.MaxUint64 || roundUp(9, 8) != 16 || roundUp(0, 8) != 0 {
		t.Error("roundUp")
	}
	for n, want := range map[uint64]uint64{0: 1, 1: 1, 2: 2, 3: 4, 1024: 1024, 1025: 2048, 1<<63 + 1: math.MaxUint64} {
		if got := powerOfTwo(n); got != want {
			t.Errorf("powerOfTwo(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestRingBytes(t *testing.T) {
	for _, c := range []struct{ size, page, want uint32 }{
		{0, 4096, 0}, {1, 4096, 4096}, {1000, 4096, 4096}, {4096, 4096, 4096}, {4097, 4096, 8192}, {3 * 4096, 4096, 4 * 4096},
		{4096, 64 << 10, 64 << 10}, {1 << 31, 4096, 1 << 31}, {1<<31 + 1, 4096, 1<<31 + 1},
	} {
		if got := RingBytes(c.size, c.page); got != c.want {
			t.Errorf("RingBytes(%d, %d) = %d, want %d", c.size, c.page, got, c.want)
		}
	}
	small, page := ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 1000}, ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: pageSize}
	if got, want := mapMemory(&small, testCPUs), mapMemory(&page, testCPUs); got != want {
		t.Errorf("a ring of 1000 bytes takes %d, want the %d of a page", got, want)
	}
}

func TestResized(t *testing.T) {
	for kind := ebpf.Hash; kind <= ebpf.Arena; kind++ {
		spec := ebpf.MapSpec{Type: kind, KeySize: 8, ValueSize: 24, MaxEntries: 5000, Flags: flagNoPrealloc, MapExtra: 3}
		m := inspectMap("m", &spec, Options{CPUs: testCPUs})
		if m.MemoryBytes != mapMemory(&spec, testCPUs) {
			t.Errorf("%s: facts say %d bytes, want %d", kind, m.MemoryBytes, mapMemory(&spec, testCPUs))
		}
		spec.MaxEntries = 100
		if got := m.Resized(100, testCPUs); got.MaxEntries != 100 || got.MemoryBytes != mapMemory(&spec, testCPUs) {
			t.Errorf("%s of 100 entries: %+v, want %d bytes", kind, got, mapMemory(&spec, testCPUs))
		}
	}
	if got := (Map{Type: "MapType(77)", KeySize: 4, ValueSize: 4}).Resized(10, 0); got.MemoryBytes != mapHeader+80 {
		t.Errorf("an unknown type on no CPU at all: %d bytes", got.MemoryBytes)
	}
}

// TestStorageIsUnbounded: of maps with a value for each socket and the like, facts say by what, and
// that their entries are no size.
func TestStorageIsUnbounded(t *testing.T) {
	for kind, by := range map[ebpf.MapType]string{
		ebpf.SkStorage: "sockets", ebpf.InodeStorage: "inodes", ebpf.TaskStorage: "tasks", ebpf.CgroupStorage: "cgroups", ebpf.CGroupStorage: "cgroups",
		ebpf.PerCPUCGroupStorage: "cgroups", ebpf.Hash: "", ebpf.Array: "", ebpf.RingBuf: "", ebpf.Arena: "",
	} {
		m := inspectMap("m", &ebpf.MapSpec{Name: "m", Type: kind, KeySize: 4, ValueSize: 60000, Flags: flagNoPrealloc}, Options{CPUs: 2})
		if m.UnboundedBy != by {
			t.Errorf("%s is unbounded by %q, want %q", kind, m.UnboundedBy, by)
		}
		if entries, _ := m.OpenSizes(); entries != (by == "") {
			t.Errorf("%s leaves its entries open: %v", kind, entries)
		}
	}
}
