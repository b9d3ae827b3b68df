package bytecode

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestOpenSizes(t *testing.T) {
	open := map[string][2]bool{}
	for _, m := range facts(t, programs.Object("xdp_open_maps")).Maps {
		entries, value := m.OpenSizes()
		open[m.Name] = [2]bool{entries, value}
	}
	for name, want := range map[string][2]bool{"no_entries": {true, false}, "no_sizes": {true, true}, "no_values": {false, true}, "per_cpu": {false, false}} {
		if open[name] != want {
			t.Errorf("map %s leaves entries and values open: %v, want %v", name, open[name], want)
		}
	}
}

// TestTheKernelRefusesOpenSizes: what OpenSizes says of a type is what the loader
// and the kernel do with zero.
func TestTheKernelRefusesOpenSizes(t *testing.T) {
	need.Kernel(t)
	for kind, key := range map[ebpf.MapType]uint32{
		ebpf.Hash: 4, ebpf.Array: 4, ebpf.ProgramArray: 4, ebpf.PerfEventArray: 4, ebpf.PerCPUHash: 4, ebpf.PerCPUArray: 4,
		ebpf.StackTrace: 4, ebpf.CGroupArray: 4, ebpf.LRUHash: 4, ebpf.LRUCPUHash: 4, ebpf.DevMap: 4, ebpf.SockMap: 4, ebpf.CPUMap: 4,
		ebpf.XSKMap: 4, ebpf.SockHash: 4, ebpf.ReusePortSockArray: 4, ebpf.Queue: 0, ebpf.Stack: 0, ebpf.DevMapHash: 4, ebpf.RingBuf: 0,
		ebpf.BloomFilter: 0, ebpf.UserRingbuf: 0,
	} {
		valueSize := map[ebpf.MapType]uint32{ebpf.StackTrace: 8, ebpf.RingBuf: 0, ebpf.UserRingbuf: 0}
		size, special := valueSize[kind]
		if !special {
			size = 4
		}
		for _, zero := range []string{"entries", "values"} {
			spec := ebpf.MapSpec{Type: kind, KeySize: key, ValueSize: size, MaxEntries: 4096}
			if zero == "entries" {
				spec.MaxEntries = 0
			} else {
				spec.ValueSize = 0
			}
			entries, value := Map{Type: kind.String(), KeySize: key, ValueSize: spec.ValueSize, MaxEntries: spec.MaxEntries}.OpenSizes()
			m, err := ebpf.NewMap(&spec)
			if err == nil {
				m.Close()
			}
			if refused := err != nil; refused != (entries || value) {
				t.Errorf("%s with no %s: open entries %v, open values %v, and the kernel answers %v", kind, zero, entries, value, err)
			}
		}
	}
}
