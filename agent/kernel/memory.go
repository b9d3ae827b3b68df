package kernel

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/layout"
)

// MostMapMemory is the greatest figure of map memory, 32 TiB: what takes more counts
// as that much, so that sums of figures stay numbers.
const MostMapMemory = 1 << 45

// Memory is what the maps may take, in bytes, that Load makes of the object when old
// is the revision that runs now, or nil. Maps that are shared with old count nothing, nor
// do those of other applications.
func (p *Prepared) Memory(old *Revision) (uint64, error) {
	cpus, err := countCPUs()
	if err != nil {
		return 0, err
	}
	shared, _ := p.carry(old, layout.New())
	var all uint64
	for name, ms := range p.Spec.Maps {
		if shared[name] != nil || p.Maps[name].From != nil {
			continue
		}
		all = addMemory(all, bytecode.MapMemory(ms, cpus))
		if ms.InnerMap != nil {
			// One is made as the template, and taken away when its outer map is there.
			all = addMemory(all, bytecode.MapMemory(ms.InnerMap, cpus))
		}
	}
	return all, nil
}

// countCPUs counts the CPUs that a per-CPU map has values for.
func countCPUs() (int, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return 0, fmt.Errorf("count CPUs: %w", err)
	}
	return cpus, nil
}

// addMemory adds two figures, up to MostMapMemory.
func addMemory(a, b uint64) uint64 { return min(a+min(b, MostMapMemory), MostMapMemory) }

// weigh notes what each map of the revision may take when it is full. The kernel's own
// figure is what a map takes now.
func (r *Revision) weigh() error {
	cpus, err := countCPUs()
	if err != nil {
		return err
	}
	r.memory, r.mapIDs = map[ebpf.MapID]uint64{}, map[string]ebpf.MapID{}
	for name, m := range r.Maps {
		info, err := m.Info()
		if err != nil {
			return fmt.Errorf("read info of map %s: %w", name, err)
		}
		id, ok := info.ID()
		if !ok {
			return fmt.Errorf("read info of map %s: the kernel tells no id", name)
		}
		r.mapIDs[name] = id
		extra, _ := info.MapExtra()
		r.memory[id] = bytecode.MapMemory(&ebpf.MapSpec{Name: name, Type: m.Type(), KeySize: m.KeySize(), ValueSize: m.ValueSize(),
			MaxEntries: m.MaxEntries(), Flags: m.Flags(), MapExtra: extra}, cpus)
	}
	return nil
}

// MapMemory is what the maps of each application may take when they are full, in bytes and
// by uid. A map counts once: for the application that made it, and where that is gone for
// one of those that have it from there, the first by uid.
func MapMemory(revisions map[string]map[string]*Revision) map[string]uint64 {
	counted, all := map[ebpf.MapID]bool{}, map[string]uint64{}
	for _, taken := range []bool{false, true} {
		for _, uid := range slices.Sorted(maps.Keys(revisions)) {
			for _, r := range revisions[uid] {
				if r == nil {
					continue
				}
				for name, id := range r.mapIDs {
					if (r.taken[name] != "") == taken && !counted[id] {
						counted[id], all[uid] = true, addMemory(all[uid], r.memory[id])
					}
				}
			}
		}
	}
	return all
}
