package loader

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/calls"
)

// withinNamespace rejects what the gate denies a namespace, in what is loaded: types of maps, and more
// work for the kernel than one application may be. The programs have their guards.
func withinNamespace(spec *ebpf.CollectionSpec, programs map[string]*ebpf.ProgramSpec) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		if why := calls.DeniedMap(spec.Maps[name].Type.String()); why != "" {
			errs = append(errs, fmt.Errorf("map %s of type %s %s; use a map of another type, such as LRUHash", name, spec.Maps[name].Type, why))
		}
	}
	if cost := loadCost(programs); cost > bytecode.MaxLoadCost {
		errs = append(errs, fmt.Errorf("the programs take the kernel about %s to load, at most %s are allowed a namespace; split the object into several applications",
			bytecode.LoadTime(cost), bytecode.LoadTime(bytecode.MaxLoadCost)))
	}
	return errors.Join(errs...)
}

// loadCost is what the kernel has to do for all programs together.
func loadCost(programs map[string]*ebpf.ProgramSpec) uint64 {
	var all uint64
	for _, ps := range programs {
		cost := bytecode.WorkOf(ps.Type, ps.Instructions).Cost()
		all += min(cost, math.MaxUint64-all)
	}
	return all
}
