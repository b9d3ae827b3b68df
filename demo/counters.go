package demo

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/nodemode"
)

// read adds up the first eight bytes of every value of a map that an
// application's program uses: one value for each CPU of a per-CPU map, one for
// a data section. It reads the kernel's own map, found by the program's id.
func read(s nodemode.Status, application, name string) (uint64, error) {
	for _, p := range find(s, application).Programs {
		prog, err := plain.Of(ebpf.NewProgramFromID(ebpf.ProgramID(p.ID)))
		if err != nil {
			return 0, fmt.Errorf("open program %d: %w", p.ID, err)
		}
		sum, found, err := readOf(prog, name)
		_ = prog.Close()
		if err != nil || found {
			return sum, err
		}
	}
	return 0, fmt.Errorf("read map %s of %s: it is not loaded", name, application)
}

func readOf(prog *ebpf.Program, name string) (sum uint64, found bool, err error) {
	info, err := plain.Of(prog.Info())
	if err != nil {
		return 0, false, fmt.Errorf("read program info: %w", err)
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := plain.Of(ebpf.NewMapFromID(id))
		if err != nil {
			return 0, false, fmt.Errorf("open map %d: %w", id, err)
		}
		about, err := m.Info()
		if err == nil && about.Name == name {
			sum, err = total(m)
			return sum, true, err
		}
		_ = m.Close()
	}
	return 0, false, nil
}

// total is the sum over the CPUs of key 0, and closes the map.
func total(m *ebpf.Map) (uint64, error) {
	defer func() { _ = m.Close() }()
	if m.Type() != ebpf.PerCPUArray {
		value, err := plain.Of(m.LookupBytes(uint32(0)))
		if err != nil || len(value) < 8 {
			return 0, fmt.Errorf("read map: %d bytes: %w", len(value), err)
		}
		return binary.NativeEndian.Uint64(value), nil
	}
	var each []uint64
	if err := plain.Error(m.Lookup(uint32(0), &each)); err != nil {
		return 0, fmt.Errorf("read map: %w", err)
	}
	var sum uint64
	for _, n := range each {
		sum += n
	}
	return sum, nil
}
