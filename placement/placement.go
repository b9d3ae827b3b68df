// Package placement says what a kernel has to have to hold an application, and
// what of it a node lacks. Controller and agent ask it alike, so both say of a
// node the same words.
//
// It is pure, and knows no version of Linux that it would reject: a node lacks
// what its profile, which was probed, does not list.
package placement

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
)

// Needs is what a kernel has to have to hold an application.
type Needs struct {
	// Hooks are names of hook.Table; ProgramTypes and MapTypes are spelled as
	// bytecode's facts spell them.
	Hooks, ProgramTypes, MapTypes []string
	// BTF tells that it takes the kernel's own.
	BTF bool
	// Helper is the youngest that its programs call; none where it has no name.
	Helper bytecode.Helper
	// AnyOf are the alternatives, of which it has to hold one set each.
	AnyOf []Alternative
}

// Alternative is what each set of programs needs of which a node runs one.
type Alternative struct {
	Name string
	Sets []Set
}

// Set is what a set of programs needs.
type Set struct {
	Programs []string
	Needs    Needs
}

// Of is what the version of a payload needs: its hooks and their program types,
// and what the facts of its object say, where they are known. What is optional is not
// needed.
func Of(p intent.Payload, facts *bytecode.Facts) Needs {
	n := ofObject(p, facts)
	chosen := map[string]v1alpha1.Program{}
	for _, alternative := range p.Alternatives {
		for _, set := range alternative.AnyOf {
			for _, name := range set.Programs {
				chosen[name] = v1alpha1.Program{}
			}
		}
	}
	for _, program := range p.Programs {
		if _, ok := chosen[program.Name]; ok {
			chosen[program.Name] = program
		} else if !program.Optional {
			n.add(program, facts)
		}
	}
	for _, alternative := range p.Alternatives {
		n.AnyOf = append(n.AnyOf, alternativeOf(alternative, chosen, facts))
	}
	return n
}

// ofObject is what an object needs whatever programs a node leaves out: its maps, and what it tail calls.
func ofObject(p intent.Payload, facts *bytecode.Facts) Needs {
	var n Needs
	if facts == nil {
		return n
	}
	n.BTF = facts.CORE
	loaded := Loaded(*facts, p.Programs, p.Maps)
	for _, m := range loaded.Maps {
		n.MapTypes = with(n.MapTypes, m.Type)
	}
	for _, name := range tailCalled(p, &loaded) {
		isListed := slices.ContainsFunc(p.Programs, func(listed v1alpha1.Program) bool { return listed.Name == name })
		if program, ok := facts.Program(name); ok && !isListed {
			n.load(program)
		}
	}
	return n
}

// tailCalled are the names of the programs that object and payload put into prog arrays.
func tailCalled(p intent.Payload, facts *bytecode.Facts) []string {
	var names []string
	for _, m := range facts.Maps {
		if m.Type != ebpf.ProgramArray.String() {
			continue
		}
		for _, c := range m.Contents {
			names = append(names, c.Name)
		}
		for _, entry := range p.Maps[m.Name].Contents {
			var name string
			if json.Unmarshal(entry.Value.Raw, &name) == nil {
				names = append(names, name)
			}
		}
	}
	return names
}

// alternativeOf is what the sets of an alternative need.
func alternativeOf(alternative v1alpha1.Alternative, programs map[string]v1alpha1.Program, facts *bytecode.Facts) Alternative {
	needs := Alternative{Name: alternative.Name}
	for _, set := range alternative.AnyOf {
		var one Needs
		for _, name := range set.Programs {
			one.add(programs[name], facts)
		}
		needs.Sets = append(needs.Sets, Set{set.Programs, one})
	}
	return needs
}

// OfAttachment is what one attachment needs, optional or not.
func OfAttachment(at v1alpha1.Attachment) Needs {
	var n Needs
	at.Optional = false
	n.add(v1alpha1.Program{Attach: []v1alpha1.Attachment{at}}, nil)
	return n
}

// add adds what one program needs.
func (n *Needs) add(program v1alpha1.Program, facts *bytecode.Facts) {
	for _, at := range program.Attach {
		if at.Optional {
			continue
		}
		n.Hooks = with(n.Hooks, at.Hook)
		if h, ok := hook.Lookup(at.Hook); ok {
			n.ProgramTypes = with(n.ProgramTypes, h.ProgramType.String())
		}
	}
	if facts == nil {
		return
	}
	if loaded, ok := facts.Program(program.Name); ok {
		n.load(loaded)
	}
}

// load adds what one program of the object needs. One whose section names no
// type gets its hook's.
func (n *Needs) load(p bytecode.Program) {
	if p.Type != ebpf.UnspecifiedProgram.String() {
		n.ProgramTypes = with(n.ProgramTypes, p.Type)
	}
	for _, name := range p.Helpers {
		// The kernel numbers them as they come.
		if h, ok := bytecode.LookupHelper(name); ok && h.ID > n.Helper.ID {
			n.Helper = h
		}
	}
}

// with is the list with one more, unless it has it.
func with(all []string, one string) []string {
	if slices.Contains(all, one) {
		return all
	}
	return append(all, one)
}

// Missing says what a node lacks, in one line: its kernel, or its agent's rights;
// empty where it lacks nothing, or where its profile is not known.
func (n Needs) Missing(k v1alpha1.KernelProfile) string {
	var missing, said []string
	for _, kind := range []struct {
		name       string
		needs, has []string
	}{
		{"hook", n.Hooks, k.Hooks},
		{"program type", n.ProgramTypes, k.ProgramTypes},
		{"map type", n.MapTypes, k.MapTypes},
	} {
		for _, one := range kind.needs {
			if len(kind.has) > 0 && !slices.Contains(kind.has, one) && denied(k, one) == "" {
				missing = append(missing, kind.name+" "+one)
			}
		}
	}
	if n.BTF && k.Release != "" && !k.BTF {
		missing = append(missing, "BTF")
	}
	if len(missing) > 0 {
		said = append(said, fmt.Sprintf("kernel %s has no %s", k.Release, strings.Join(missing, ", ")))
	}
	for _, h := range n.Hooks {
		if why := denied(k, h); why != "" {
			said = append(said, fmt.Sprintf("the agent may not attach to hook %s: %s", h, why))
		}
	}
	for _, a := range n.AnyOf {
		if why := a.missing(k); why != "" {
			said = append(said, why)
		}
	}
	return strings.Join(said, "; ")
}

// missing says what a node lacks for every set; empty where it lacks nothing for one.
func (a Alternative) missing(k v1alpha1.KernelProfile) string {
	var why []string
	for _, set := range a.Sets {
		one := set.Needs.Missing(k)
		if one == "" {
			return ""
		}
		why = append(why, strings.Join(set.Programs, ", ")+": "+one)
	}
	return fmt.Sprintf("none of alternative %s can run (%s)", a.Name, strings.Join(why, "; "))
}

// denied is why the agent may not attach to a hook; empty where it may.
func denied(k v1alpha1.KernelProfile, name string) string {
	for _, d := range k.Denied {
		if slices.Contains(d.Hooks, name) {
			return d.Reason
		}
	}
	return ""
}

// Doubt says which helper a kernel of this release may lack, the youngest of
// all; empty where it is old enough. It is no more than a doubt: distributions
// port helpers back, and the verifier decides.
func (n Needs) Doubt(release string) string {
	if n.Helper.Name == "" || release == "" || !bytecode.Older(release, n.Helper.MinKernel) {
		return ""
	}
	return fmt.Sprintf("kernel %s may have no helper %s, which came with Linux %s", release, n.Helper.Name, n.Helper.MinKernel)
}
