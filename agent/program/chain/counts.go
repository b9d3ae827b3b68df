package chain

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

// The words of a member in the value of the map, each of wordSize bytes: a count for each verdict of
// enum xdp_action by its number, one for all others and, which the dispatcher does not touch, the
// runs of before there were counts by verdict; at last its switch, which the dispatcher only reads.
const (
	wordSize     = 8
	otherVerdict = 5
	runsBefore   = 6
	memberCounts = 7
	switchedOff  = 7
	memberWords  = 8
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

// counters is the map of counts: one entry, with the words of each member, per CPU.
func counters(members []Member, from map[string]Counts) *ebpf.MapSpec {
	spec := &ebpf.MapSpec{
		Name:       CountersName,
		Type:       ebpf.PerCPUArray,
		KeySize:    4,
		ValueSize:  uint32(len(members) * memberWords * wordSize),
		MaxEntries: 1,
	}
	var start []uint64
	var any bool
	for _, m := range members {
		counts := from[m.Key]
		start, any = append(append(start, counts[:]...), 0), any || counts.Runs() != 0
	}
	if any {
		spec.Contents = []ebpf.MapKV{{Key: uint32(0), Value: [][]uint64{start}}}
	}
	return spec
}

// ReadCounts returns the counts of so many members, summed over the CPUs, in the order of the
// chain. Of a map that an earlier version of Skep made, it is how often each ran.
func ReadCounts(counters *ebpf.Map, members int) ([]Counts, error) {
	perCPU, width, err := words(counters, members)
	if err != nil {
		return nil, err
	}
	all := make([]Counts, members)
	for _, value := range perCPU {
		for i := range members {
			for slot := range min(width, memberCounts) {
				n := binary.NativeEndian.Uint64(value[(i*width+slot)*wordSize:])
				if width == 1 {
					slot = runsBefore
				}
				all[i][slot] += n
			}
		}
	}
	return all, nil
}

// ErrNoSwitch says that an earlier version of Skep loaded the chain, whose members cannot be switched off.
var ErrNoSwitch = errors.New("its members cannot be switched off")

// ReadSwitches returns which of so many members are off, in the order of the chain.
func ReadSwitches(counters *ebpf.Map, members int) ([]bool, error) {
	perCPU, width, err := words(counters, members)
	if err != nil {
		return nil, err
	}
	off := make([]bool, members)
	for _, value := range perCPU {
		for i := range members {
			off[i] = off[i] || width == memberWords && binary.NativeEndian.Uint64(value[switchAt(i):]) != 0
		}
	}
	return off, nil
}

// Switch has the chain go on without the members that are off, and with all others, from the next packet on.
// A member that is off counts as one that is not there. What is counted meanwhile is lost. It fails with
// ErrNoSwitch.
func Switch(counters *ebpf.Map, off []bool) error {
	perCPU, width, err := words(counters, len(off))
	if err == nil && width != memberWords {
		err = ErrNoSwitch
	}
	if err != nil {
		return fmt.Errorf("switch members of chain: %w", err)
	}
	for _, value := range perCPU {
		for i, is := range off {
			word := uint64(0)
			if is {
				word = 1
			}
			binary.NativeEndian.PutUint64(value[switchAt(i):], word)
		}
	}
	if err := plain.Error(counters.Put(uint32(0), perCPU)); err != nil {
		return fmt.Errorf("switch members of chain: %w", err)
	}
	return nil
}

// switchAt is where the switch of a member is.
func switchAt(member int) int { return (member*memberWords + switchedOff) * wordSize }

// words reads the value of each CPU, and how many words of it each member has.
func words(counters *ebpf.Map, members int) (perCPU [][]byte, width int, err error) {
	if err := plain.Error(counters.Lookup(uint32(0), &perCPU)); err != nil {
		return nil, 0, fmt.Errorf("read chain counters: %w", err)
	}
	if size := int(counters.ValueSize()); members > 0 && size%(members*wordSize) == 0 {
		width = size / (members * wordSize)
	}
	if width != 1 && width != memberCounts && width != memberWords {
		return nil, 0, fmt.Errorf("read chain counters: %d bytes are not those of %d members", counters.ValueSize(), members)
	}
	return perCPU, width, nil
}
