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

// fitTargets denies more programs at one target than a kernel runs there, of those that every node has to attach. Programs are those
// of the definition with their hooks and targets filled in.
func fitTargets(r *denials, spec *v1alpha1.BpfApplicationSpec, programs []v1alpha1.Program) {
	count := map[string]int{}
	for _, p := range programs {
		for j, a := range p.Attach {
			h, _ := hook.Lookup(a.Hook)
			most := mostAtOneTarget(h)
			if most == 0 || a.Optional || mayLeaveOut(spec, p) {
				continue
			}
			// The place in the order is no part of the target, and hooks that count together are one.
			a.Hook, a.Priority, a.AfterNamespaces, a.ProceedOn = h.CountedWith(), nil, false, nil
			target, err := json.Marshal(a)
			if err != nil {
				continue
			}
			if count[string(target)]++; count[string(target)] != most+1 {
				continue
			}
			i := slices.IndexFunc(spec.Programs, func(one v1alpha1.Program) bool { return one.Name == p.Name })
			fix := "attach fewer"
			if others := h.Unbounded(); others != "" {
				fix += ", or use " + others
			}
			r.add("inspect/kernel", fmt.Sprintf("spec.programs[%d].attach[%d]", i, j), fix,
				"an application has at most %d programs of %s at one target, since the kernel runs %d there, and this is number %d",
				most, h.CountedWith(), h.MostPrograms(), most+1)
		}
	}
}

// mostAtOneTarget is how many programs of a hook an application may have at one target, 0 for any number. Where the next version of
// a program is attached before the last one goes, there is to be room for it.
func mostAtOneTarget(h hook.Hook) int {
	most := h.MostPrograms()
	if most > 0 && h.Replace == hook.ByOverlap {
		most--
	}
	if h.IsFilter() {
		most = 0
	}
	return most
}
