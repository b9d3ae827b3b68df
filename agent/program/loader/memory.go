package loader

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/jit"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/layout"
	"github.com/skep-dev/skep/bytecode/plain"
)

// MostMapMemory is the greatest figure of memory, 32 TiB: what takes more counts
// as that much, so that sums of figures stay numbers.
const MostMapMemory = 1 << 45

// The kernel keeps the instructions that it made of a program, 8 bytes each and twice where there are
// functions, and what it made of them for the processor, in whole pages, and for each line of the source
// where it lies. Each function is a program of its own.
const instructionMemory, functionMemory = 32, 2 * 4096

// memoryOfProgram is what a program may take, in bytes, of so many instructions as the kernel has them
// and so many functions, itself included.
func memoryOfProgram(translated, functions int) uint64 {
	return functionMemory*uint64(max(functions, 1)) + instructionMemory*uint64(translated)
}

// Memory is what the maps and programs may take, in bytes, that Load makes of the object when old
// is the revision that runs now, or nil. Maps that are shared with old count nothing, nor
// do those of other applications. Of sets of programs of which a node chooses one, all count.
func (p *Prepared) Memory(old *Revision) (uint64, error) {
	all, err := p.mapMemory(old)
	for _, spec := range p.Spec.Programs {
		w := jit.WorkOf(spec.Type, spec.Instructions)
		all = addMemory(all, memoryOfProgram(w.Translated, w.Functions))
	}
	return all, err
}

// mapMemory is Memory of the maps alone.
func (p *Prepared) mapMemory(old *Revision) (uint64, error) {
	all, _, err := p.ofMade(old, bytecode.MapMemory)
	return all, err
}

// MapCost is what the kernel has to do to make the maps that Load makes when old is the revision that runs now, or nil.
// It is a bytecode.Work.Cost, as LoadCost.
func (p *Prepared) MapCost(old *Revision) (uint64, error) {
	all, _, err := p.ofMade(old, bytecode.MapCost)
	return all, err
}

// ofMade is the sum of figures of the maps that Load makes, up to MostMapMemory, and the name of the map with the greatest.
func (p *Prepared) ofMade(old *Revision, figure func(*ebpf.MapSpec, int) uint64) (all uint64, most string, err error) {
	cpus, err := countCPUs()
	if err != nil {
		return 0, "", err
	}
	shared, _ := p.carry(old, layout.New())
	var greatest uint64
	for _, name := range slices.Sorted(maps.Keys(p.Spec.Maps)) {
		if shared[name] != nil || p.Maps[name].From != nil {
			continue
		}
		one := figure(p.Spec.Maps[name], cpus)
		if inner := p.Spec.Maps[name].InnerMap; inner != nil {
			// One is made as the template, and taken away when its outer map is there.
			one = addMemory(one, figure(inner, cpus))
		}
		if all = addMemory(all, one); one > greatest {
			most, greatest = name, one
		}
	}
	return all, most, nil
}

// countCPUs counts the CPUs that a per-CPU map has values for.
func countCPUs() (int, error) {
	cpus, err := plain.Of(ebpf.PossibleCPU())
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
		info, err := plain.Of(m.Info())
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

// Memory is what the programs and maps of each application may take when the maps are full, in bytes
// and by uid. A map counts once: for the application that made it, and where that is gone for
// one of those that have it from there, the first by uid.
func Memory(revisions map[string]map[string]*Revision) map[string]uint64 {
	all := mapMemory(revisions)
	for uid, of := range revisions {
		for _, r := range of {
			if r != nil {
				all[uid] = addMemory(all[uid], r.programs)
			}
		}
	}
	return all
}

// mapMemory is Memory of the maps alone.
func mapMemory(revisions map[string]map[string]*Revision) map[string]uint64 {
	counted, all := map[ebpf.MapID]bool{}, map[string]uint64{}
	for _, taken := range []bool{false, true} {
		for _, uid := range slices.Sorted(maps.Keys(revisions)) {
			for _, r := range revisions[uid] {
				if r == nil {
					continue
				}
				for name, id := range r.mapIDs {
					if (r.Notes[name].From != "") == taken && !counted[id] {
						counted[id], all[uid] = true, addMemory(all[uid], r.memory[id])
					}
				}
			}
		}
	}
	return all
}
