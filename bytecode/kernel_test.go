package bytecode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/test/harness/need"
)

// charged is what the kernel says a map costs: memlock of fdinfo, which is the
// answer of the map_mem_usage callbacks since 6.4.
func charged(t *testing.T, m *ebpf.Map) uint64 {
	t.Helper()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", m.FD()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := bytes.Cut(info, []byte("memlock:"))
	if !ok {
		t.Fatalf("no memlock in fdinfo:\n%s", info)
	}
	var n uint64
	if _, err := fmt.Fscan(bytes.NewReader(rest), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// fill puts as many entries into a map as it takes. Hash, LPM and device maps
// are charged for what they hold.
func fill(t *testing.T, m *ebpf.Map) {
	t.Helper()
	for i := range m.MaxEntries() {
		key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
		binary.LittleEndian.PutUint32(key, i)
		switch m.Type() {
		case ebpf.LPMTrie:
			binary.LittleEndian.PutUint32(key, 8*m.KeySize()-32)
			binary.BigEndian.PutUint32(key[4:], i)
		case ebpf.DevMapHash:
			binary.LittleEndian.PutUint32(value, 1) // the loopback device
		}
		if err := m.Put(key, value); err != nil {
			t.Fatalf("put entry %d: %v", i, err)
		}
	}
}

func TestMapMemoryAgreesWithTheKernel(t *testing.T) {
	need.Kernel(t)
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}
	for name, test := range map[string]struct {
		spec ebpf.MapSpec
		// fill the map before asking.
		fill bool
		// atMost is how many times the kernel's figure the estimate may be,
		// beyond 1 KiB; 0 means 1.02.
		atMost float64
	}{
		"an array":                            {spec: ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 10000}},
		"an array of odd values":              {spec: ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 3, MaxEntries: 10000}},
		"an array to map into memory":         {spec: ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 10000, Flags: flagMmapable}},
		"an array per CPU":                    {spec: ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 20, MaxEntries: 10000}},
		"a hash":                              {spec: ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 10000}},
		"a hash of odd keys and values":       {spec: ebpf.MapSpec{Type: ebpf.Hash, KeySize: 13, ValueSize: 70, MaxEntries: 5000}},
		"a full hash without preallocation":   {spec: ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 5000, Flags: flagNoPrealloc}, fill: true},
		"a hash per CPU":                      {spec: ebpf.MapSpec{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 8, MaxEntries: 10000}},
		"a least recently used hash":          {spec: ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: 8, MaxEntries: 10000}},
		"such a hash without a common list":   {spec: ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: 8, MaxEntries: 10001, Flags: 2}},
		"such a hash per CPU":                 {spec: ebpf.MapSpec{Type: ebpf.LRUCPUHash, KeySize: 4, ValueSize: 8, MaxEntries: 10000}},
		"a hash of maps":                      {spec: ebpf.MapSpec{Type: ebpf.HashOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1000, InnerMap: inner}, atMost: 1.1},
		"an array of maps":                    {spec: ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1000, InnerMap: inner}},
		"a program array":                     {spec: ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1000}},
		"a perf event array without a size":   {spec: ebpf.MapSpec{Type: ebpf.PerfEventArray, KeySize: 4, ValueSize: 4}},
		"a cgroup array":                      {spec: ebpf.MapSpec{Type: ebpf.CGroupArray, KeySize: 4, ValueSize: 4, MaxEntries: 1000}},
		"a ring buffer":                       {spec: ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 1 << 20}},
		"a user ring buffer":                  {spec: ebpf.MapSpec{Type: ebpf.UserRingbuf, MaxEntries: 1 << 20}},
		"a queue":                             {spec: ebpf.MapSpec{Type: ebpf.Queue, ValueSize: 20, MaxEntries: 1000}},
		"a stack":                             {spec: ebpf.MapSpec{Type: ebpf.Stack, ValueSize: 20, MaxEntries: 1000}},
		"a bloom filter":                      {spec: ebpf.MapSpec{Type: ebpf.BloomFilter, ValueSize: 8, MaxEntries: 100000}},
		"a bloom filter of three hashes":      {spec: ebpf.MapSpec{Type: ebpf.BloomFilter, ValueSize: 8, MaxEntries: 100000, MapExtra: 3}},
		"a small bloom filter":                {spec: ebpf.MapSpec{Type: ebpf.BloomFilter, ValueSize: 8, MaxEntries: 1}},
		"stack traces":                        {spec: ebpf.MapSpec{Type: ebpf.StackTrace, KeySize: 4, ValueSize: 127 * 8, MaxEntries: 1000}},
		"a device map":                        {spec: ebpf.MapSpec{Type: ebpf.DevMap, KeySize: 4, ValueSize: 4, MaxEntries: 1000}},
		"a full hash of devices":              {spec: ebpf.MapSpec{Type: ebpf.DevMapHash, KeySize: 4, ValueSize: 4, MaxEntries: 1000}, fill: true},
		"a CPU map":                           {spec: ebpf.MapSpec{Type: ebpf.CPUMap, KeySize: 4, ValueSize: 4, MaxEntries: 2}},
		"an AF_XDP map":                       {spec: ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 1000}},
		"a socket map":                        {spec: ebpf.MapSpec{Type: ebpf.SockMap, KeySize: 4, ValueSize: 4, MaxEntries: 1000}},
		"an empty hash of sockets":            {spec: ebpf.MapSpec{Type: ebpf.SockHash, KeySize: 16, ValueSize: 4, MaxEntries: 1000}, atMost: 5},
		"an array of sockets to share a port": {spec: ebpf.MapSpec{Type: ebpf.ReusePortSockArray, KeySize: 4, ValueSize: 4, MaxEntries: 1000}},
		"storage on cgroups as it used to be": {spec: ebpf.MapSpec{Type: ebpf.CGroupStorage, KeySize: 16, ValueSize: 100}},
		"a full trie, with nodes in between": {
			spec: ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 8, MaxEntries: 1000, Flags: flagNoPrealloc}, fill: true, atMost: 2.8,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := ebpf.NewMap(&test.spec)
			if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, os.ErrInvalid) {
				t.Skipf("SKIPPED: this kernel has no such map: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if test.fill {
				fill(t, m)
			}
			estimate, kernel := mapMemory(&test.spec, uint64(cpus)), charged(t, m)
			t.Logf("estimate %d, kernel %d", estimate, kernel)
			if test.atMost == 0 {
				test.atMost = 1.02
			}
			if estimate < kernel || float64(estimate) > test.atMost*float64(kernel)+1024 {
				t.Errorf("estimate %d bytes; the kernel charges %d", estimate, kernel)
			}
		})
	}
}

// verifierLog loads a proprietary program that calls one helper, and returns
// what the verifier says; false where the kernel has no such program type.
func verifierLog(t *testing.T, spec ebpf.ProgramSpec, h Helper) (log string, ok bool) {
	t.Helper()
	spec.License = "Proprietary"
	spec.Instructions = asm.Instructions{asm.BuiltinFunc(h.ID).Call(), asm.Mov.Imm(asm.R0, 0), asm.Return()}
	p, err := ebpf.NewProgram(&spec)
	if err == nil {
		p.Close()
		return "", true
	}
	var refused *ebpf.VerifierError
	if !errors.As(err, &refused) || len(refused.Log) == 0 {
		return "", false
	}
	return strings.Join(refused.Log, "\n"), true
}

// unavailable reports whether the verifier did not get as far as the licence.
func unavailable(log string) bool {
	return strings.Contains(log, "unknown func") || strings.Contains(log, "cannot use helper") || strings.Contains(log, "invalid func")
}

// nameInLog finds a helper's name in a verifier's log, where it reads
// bpf_name#id.
func nameInLog(log string, id uint32) (string, bool) {
	before, _, found := strings.Cut(log, fmt.Sprintf("#%d", id))
	if !found {
		return "", false
	}
	name := before[strings.LastIndexAny(before, " \n")+1:]
	return name, strings.HasPrefix(name, "bpf_")
}
