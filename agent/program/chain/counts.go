package chain

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/hook"
)

// The counts of a member in the value of the map, each of countSize bytes: one for each verdict of
// enum xdp_action by its number, one for all others and, which the dispatcher does not touch, the
// runs of before there were counts by verdict.
const (
	countSize    = 8
	otherVerdict = 5
	runsBefore   = 6
	memberCounts = 7
)

// Counts are how often a member returned each verdict.
type Counts [memberCounts]uint64

// Runs returns how often the member ran.
func (c Counts) Runs() uint64 {
	var all uint64
	for _, n := range c {
		all += n
	}
	return all
}

// Verdicts returns how often each verdict was returned that was returned at all, by its name; Other
// stands for values that the kernel has no name for.
func (c Counts) Verdicts() map[string]uint64 {
	all := map[string]uint64{}
	for _, v := range hook.XDPVerdicts() {
		if n := c[v.Code]; n > 0 {
			all[v.Name] = n
		}
	}
	if n := c[otherVerdict]; n > 0 {
		all["Other"] = n
	}
	return all
}

// counters is the map of counts: one entry, with the counts of each member, per CPU.
func counters(members []Member, from map[string]Counts) *ebpf.MapSpec {
	spec := &ebpf.MapSpec{
		Name:       CountersName,
		Type:       ebpf.PerCPUArray,
		KeySize:    4,
		ValueSize:  uint32(len(members) * memberCounts * countSize),
		MaxEntries: 1,
	}
	var start []uint64
	var any bool
	for _, m := range members {
		counts := from[m.Key]
		start, any = append(start, counts[:]...), any || counts.Runs() != 0
	}
	if any {
		spec.Contents = []ebpf.MapKV{{Key: uint32(0), Value: [][]uint64{start}}}
	}
	return spec
}

// ReadCounts returns the counts of so many members, summed over the CPUs, in the order of the
// chain. Of a map that an earlier version of Skep made, it is how often each ran.
func ReadCounts(counters *ebpf.Map, members int) ([]Counts, error) {
	var perCPU [][]byte
	if err := counters.Lookup(uint32(0), &perCPU); err != nil {
		return nil, fmt.Errorf("read chain counters: %w", err)
	}
	all, width := make([]Counts, members), 0
	if size := int(counters.ValueSize()); members > 0 && size%(members*countSize) == 0 {
		width = size / (members * countSize)
	}
	if width != 1 && width != memberCounts {
		return nil, fmt.Errorf("read chain counters: %d bytes are not those of %d members", counters.ValueSize(), members)
	}
	for _, value := range perCPU {
		for i := range members {
			for slot := range width {
				n := binary.NativeEndian.Uint64(value[(i*width+slot)*countSize:])
				if width == 1 {
					slot = runsBefore
				}
				all[i][slot] += n
			}
		}
	}
	return all, nil
}
