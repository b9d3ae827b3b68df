package gate

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
)

// fitKernels denies what no kernel loads: programs that every node has to load, and the maps that
// they refer to, in the sizes that the definition gives them. A program that a node may leave out,
// optional or of an alternative, is that node's to try.
func fitKernels(r *denials, spec *v1alpha1.BpfApplicationSpec, facts bytecode.Facts) {
	used := map[string]bool{}
	r.crowded(spec)
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

// crowded denies more programs at one target than the kernel runs there, of those that every node has to attach.
func (r *denials) crowded(spec *v1alpha1.BpfApplicationSpec) {
	count := map[string]int{}
	for i, p := range spec.Programs {
		for j, a := range p.Attach {
			h, _ := hook.Lookup(a.Hook)
			most := h.MostPrograms()
			if most == 0 || a.Optional || mayLeaveOut(spec, p) {
				continue
			}
			// A place in the order is not of the target.
			a.Priority, a.ProceedOn = nil, nil
			target, _ := json.Marshal(a)
			if count[string(target)]++; count[string(target)] != most+1 {
				continue
			}
			fix := "attach fewer"
			if others := h.Unbounded(); others != "" {
				fix += ", or use " + others
			}
			r.add("inspect/kernel", fmt.Sprintf("spec.programs[%d].attach[%d]", i, j), fix,
				"no kernel runs more than %d programs of %s at one target, and this is number %d", most, h.Name, most+1)
		}
	}
}
