// Package placement says what a kernel has to have to hold an application, and
// what of it a node lacks. Controller and agent ask it alike, so both say of a
// node the same words.
//
// It is pure, and knows no version of Linux that it would reject: a node lacks
// what its profile, which was probed, does not list.
package placement

import (
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
}

// Of is what the version of a payload needs: its hooks and their program types,
// and what the facts of its object say, where they are known.
func Of(p intent.Payload, facts *bytecode.Facts) Needs {
	var n Needs
	for _, program := range p.Programs {
		for _, at := range program.Attach {
			n.Hooks = with(n.Hooks, at.Hook)
			if h, ok := hook.Lookup(at.Hook); ok {
				n.ProgramTypes = with(n.ProgramTypes, h.ProgramType.String())
			}
		}
	}
	if facts == nil {
		return n
	}
	n.BTF = facts.CORE
	for _, m := range facts.Maps {
		n.MapTypes = with(n.MapTypes, m.Type)
	}
	for _, program := range p.Programs {
		if loaded, ok := facts.Program(program.Name); ok {
			n.load(loaded)
		}
	}
	return n
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
	return strings.Join(said, "; ")
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
