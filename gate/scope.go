package gate

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
)

// fitScope denies programs by which a namespace would see more than its own Pods: those that read
// memory of the kernel, and where a guard holds a program to the tasks of the Pods, those that see
// what others do. No policy allows them.
func fitScope(r *denials, id v1alpha1.Identity, programs []v1alpha1.Program, facts bytecode.Facts) {
	if id.Kind != v1alpha1.KindBpfApplication {
		return
	}
	named, guarded := map[string]string{}, false
	for i, p := range programs {
		at := fmt.Sprintf("spec.programs[%d]", i)
		named[p.Name] = at
		fact, _ := facts.Program(p.Name)
		for k, a := range p.Attach {
			h, _ := hook.Lookup(a.Hook)
			guarded = guarded || h.Guardable()
			fitSubject(r, id, fmt.Sprintf("%s.attach[%d]", at, k), a, fact)
		}
	}
	for _, p := range facts.Programs {
		at, isNamed := named[p.Name]
		if !isNamed && !callsTails(facts) {
			continue
		}
		if at = cmp.Or(at, "spec.bytecode.image"); guarded && !isNamed && len(p.AsyncCallbacks) > 0 {
			denyLater(r, id, at, p)
		}
		if !p.ReadsKernelMemory {
			continue
		}
		r.add("inspect/scope", at, "use a "+v1alpha1.KindClusterBpfApplication+", or an image whose programs do not do so",
			"program %s reads memory of the kernel, which belongs to all namespaces, and a %s may not: %s", p.Name, id.Kind, strings.Join(p.ReadsKernelMemoryBy, ", "))
	}
}

// callsTails reports whether a program of the object may run that the definition does not name.
func callsTails(facts bytecode.Facts) bool {
	for _, m := range facts.Maps {
		if m.Type == ebpf.ProgramArray.String() {
			return true
		}
	}
	return false
}

// denyLater denies a program of which parts run when the guard is over.
func denyLater(r *denials, id v1alpha1.Identity, at string, fact bytecode.Program) {
	r.add("inspect/scope", at, "use a "+v1alpha1.KindClusterBpfApplication+", or an image whose programs do not do so",
		"parts of program %s run later, for any task of the node, and a %s may not have that: %s", fact.Name, id.Kind, strings.Join(fact.AsyncCallbacks, ", "))
}

// fitSubject denies an attachment that needs a guard to a program whose events are not the doing
// of the current task.
func fitSubject(r *denials, id v1alpha1.Identity, at string, a v1alpha1.Attachment, fact bytecode.Program) {
	h, ok := hook.Lookup(a.Hook)
	if !ok || a.Pods == nil || !h.Guardable() {
		return
	}
	if len(fact.AsyncCallbacks) > 0 {
		denyLater(r, id, at, fact)
		return
	}
	field, targets := "tracepoint", []string{a.Tracepoint}
	if f := a.Functions; f != nil {
		field, targets = "functions", f.Names
	}
	for _, target := range targets {
		if fact.SubjectAt(h.Name, target) != hook.Current {
			r.add("inspect/scope", at+"."+field, "attach to a system call, to a function or tracepoint of one, or to a binary, or use a "+v1alpha1.KindClusterBpfApplication,
				"%s %s is not known to run for the task alone that causes it, so that a %s would see what other namespaces do", h.Name, target, id.Kind)
		}
	}
}
