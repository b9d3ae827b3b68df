package programs

import (
	"bufio"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
)

// memoryOf reads what programs take, by what has series. What is gone, or may not be read, takes nothing.
func memoryOf(ids map[uint32]program) map[program]uint64 {
	all, counted := map[program]uint64{}, map[ebpf.MapID]bool{}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		bytes, used, ok := programMemory(ebpf.ProgramID(id))
		if !ok {
			continue
		}
		for _, m := range used {
			if !counted[m] {
				counted[m] = true
				bytes += mapMemory(m)
			}
		}
		all[ids[id]] += bytes
	}
	return all
}

// programMemory is what one program takes without its maps.
func programMemory(id ebpf.ProgramID) (bytes uint64, used []ebpf.MapID, ok bool) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return 0, nil, false
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return 0, nil, false
	}
	bytes, _ = info.Memlock()
	machine, _ := info.JitedSize()
	used, _ = info.MapIDs()
	return bytes + uint64(machine), used, true
}

// mapMemory is what one map takes.
func mapMemory(id ebpf.MapID) uint64 {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return 0
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return 0
	}
	bytes, _ := info.Memlock()
	return bytes
}

// jit is the kernel's memory for machine code; 0 where the kernel does not tell. Only the first network namespace has the limit.
type jit struct{ bytes, limit uint64 }

// Where the kernel tells of it: it counts what it has taken, but shows only the areas that it is in.
const (
	areasFile = "/proc/vmallocinfo"
	limitFile = "/proc/sys/net/core/bpf_jit_limit"
)

// readJIT reads both.
func readJIT() (now jit) {
	if text, err := os.ReadFile(limitFile); err == nil {
		now.limit, _ = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	}
	if areas, err := os.Open(areasFile); err == nil {
		defer areas.Close()
		now.bytes, _ = machineCode(areas)
	}
	return now
}

// allocators are the functions of kernels that take memory for machine code of BPF: for packs of programs since 5.18, and for each one before,
// and where it is larger than a pack.
var allocators = []string{"bpf_jit_", "bpf_prog_pack_alloc", "alloc_new_pack"}

// machineCode sums the areas of machine code. A line is RANGE SIZE CALLER pages=N …; SIZE has a page that guards the area.
func machineCode(areas io.Reader) (bytes uint64, err error) {
	lines := bufio.NewScanner(areas)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !slices.ContainsFunc(allocators, func(a string) bool { return strings.HasPrefix(fields[2], a) }) {
			continue
		}
		for _, f := range fields[3:] {
			if n, isPages := strings.CutPrefix(f, "pages="); isPages {
				pages, err := strconv.ParseUint(n, 10, 64)
				if err != nil {
					return 0, err
				}
				bytes += pages * uint64(os.Getpagesize())
			}
		}
	}
	return bytes, lines.Err()
}
