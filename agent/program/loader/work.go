package loader

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/jit"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/calls"
)

// withinNamespace rejects what the gate denies a namespace, in what is loaded when old is the revision that runs now: types
// and flags of maps, and more work for the kernel than one application may be. The programs have their guards. It is not asked for
// chains and further programs of what runs already.
func (p *Prepared) withinNamespace(old *Revision) error {
	if p.Application.Kind != v1alpha1.KindBpfApplication {
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(p.Spec.Maps)) {
		errs = append(errs, mapWithinNamespace(name, p.Spec.Maps[name])...)
		// The kernel makes one of those that a map of maps has, to make it by.
		if inner := p.Spec.Maps[name].InnerMap; inner != nil {
			errs = append(errs, mapWithinNamespace(name, inner)...)
		}
	}
	if cost := p.LoadCost(); cost > bytecode.MaxLoadCost {
		var on string
		if jit.Blinds() {
			on = " where " + jit.Hardening + " is 2"
		}
		errs = append(errs, fmt.Errorf("programs denied by load/cost: they may take the kernel up to %s to load%s, at most %s are allowed a namespace; "+
			"split the object into several ones", bytecode.LoadTime(cost), on, bytecode.LoadTime(bytecode.MaxLoadCost)))
	}
	return errors.Join(append(errs, p.makesWithinNamespace(old))...)
}

// mapWithinNamespace rejects the type of a map, and flags.
func mapWithinNamespace(name string, m *ebpf.MapSpec) (errs []error) {
	if why := calls.DeniedMap(m.Type.String()); why != "" {
		errs = append(errs, fmt.Errorf("map %s denied by load/maps: a map of type %s %s; use a map of another type, such as LRUHash", name, m.Type, why))
	}
	flags := calls.DeniedFlags(m.Flags)
	for _, flag := range slices.Sorted(maps.Keys(flags)) {
		errs = append(errs, fmt.Errorf("map %s denied by load/maps: it has the flag %s, which %s; take it out of map_flags", name, flag, flags[flag]))
	}
	return errs
}

// makesWithinNamespace rejects maps that take this node's kernel too long to make.
func (p *Prepared) makesWithinNamespace(old *Revision) error {
	cost, most, err := p.ofMade(old, bytecode.MapCost)
	if err != nil || cost <= bytecode.MaxMapCost {
		return err
	}
	cpus, err := countCPUs()
	if err != nil {
		return err
	}
	m := p.Spec.Maps[most]
	fewer := "give it fewer entries"
	if m.Type == ebpf.Hash || m.Type == ebpf.PerCPUHash {
		fewer += " or the flag BPF_F_NO_PREALLOC"
	}
	return fmt.Errorf("map %s denied by load/cost: the maps may take the kernel of this node up to %s to make for its %d CPUs, at most %s are allowed a "+
		"namespace, and most takes this one, of type %s with %d entries; %s, keep off nodes of so many CPUs by spec.nodeSelector, or use a %s", most,
		bytecode.LoadTime(cost), cpus, bytecode.LoadTime(bytecode.MaxMapCost), m.Type, m.MaxEntries, fewer, v1alpha1.KindClusterBpfApplication)
}

// LoadCost is what the kernel has to do to load all programs, as bytecode.Work.Cost.
func (p *Prepared) LoadCost() uint64 {
	var all uint64
	for name := range p.Spec.Programs {
		all += min(p.LoadCostOf(name), math.MaxUint64-all)
	}
	return all
}

// LoadCostOf is LoadCost of one program; 0 where there is none of the name.
func (p *Prepared) LoadCostOf(name string) uint64 {
	ps := p.Spec.Programs[name]
	if ps == nil {
		return 0
	}
	return jit.WorkOf(ps.Type, ps.Instructions).Cost()
}
