package gate

import (
	"fmt"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
)

// fitKernels denies what no kernel loads: programs that every node has to load, and the maps that
// they refer to, in the sizes that the definition gives them. A program that a node may leave out,
// optional or of an alternative, is that node's to try.
func fitKernels(r *denials, spec *v1alpha1.BpfApplicationSpec, facts bytecode.Facts) {
	used := map[string]bool{}
	for i, p := range spec.Programs {
		fact, ok := facts.Program(p.Name)
		if !ok || mayLeaveOut(spec, p) {
			continue
		}
		for _, o := range fact.Obstacles {
			r.add("inspect/kernel", fmt.Sprintf("spec.programs[%d]", i), o.Fix, "no kernel loads program %s: %s", p.Name, o.Reason)
		}
		for _, name := range fact.Maps {
			used[name] = true
		}
	}
	for _, m := range facts.Maps {
		override := spec.Maps[m.Name]
		if !used[m.Name] || override.From != nil {
			continue
		}
		if override.MaxEntries != nil {
			m.MaxEntries = *override.MaxEntries
		}
		if override.ValueSize != nil {
			m.ValueSize = *override.ValueSize
		}
		for _, o := range m.Obstacles() {
			r.add("inspect/kernel", "spec.maps."+m.Name, o.Fix, "no kernel makes map %s of type %s: %s", m.Name, m.Type, o.Reason)
		}
	}
}

// mayLeaveOut reports whether a node may run the application without a program.
func mayLeaveOut(spec *v1alpha1.BpfApplicationSpec, p v1alpha1.Program) bool {
	return p.Optional || slices.ContainsFunc(spec.Alternatives, func(a v1alpha1.Alternative) bool {
		return slices.ContainsFunc(a.AnyOf, func(set v1alpha1.ProgramSet) bool { return slices.Contains(set.Programs, p.Name) })
	})
}
