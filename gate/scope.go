package gate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/calls"
	"github.com/skep-dev/skep/hook"
)

// fitScope denies programs by which a namespace would see more than its own Pods, or reach others:
// those that read memory of the kernel or call what leads out of the Pods, and those that see what
// others do. No policy allows them. A program that the definition does not name counts where it
// may be tail called.
func fitScope(r *denials, id v1alpha1.Identity, programs []v1alpha1.Program, facts bytecode.Facts) {
	if id.Kind != v1alpha1.KindBpfApplication {
		return
	}
	// A program whose section says of no type is of the hook's, so that its name counts.
	n := scopeOf(programs, callsTails(facts))
	for i, p := range programs {
		fact, _ := facts.Program(p.Name)
		fitEqual(r, fmt.Sprintf("spec.programs[%d]", i), p)
		for k, a := range p.Attach {
			at := fmt.Sprintf("spec.programs[%d].attach[%d]", i, k)
			h, _ := hook.Lookup(a.Hook)
			of := describeProgram(p.Name, fact)
			fitDecision(r, id, at, of, a, h)
			fitOffset(r, id, at, of, a)
			fitSubject(r, id, at, of, a, fact)
		}
	}
	fitKindsOfMaps(r, id, facts.Maps)
	for _, p := range facts.Programs {
		at, isNamed := n.paths[p.Name]
		if !isNamed && !n.tails {
			continue
		}
		at = cmp.Or(at, "spec.bytecode.image")
		place := n.placeOf(p.Name)
		fitContext(r, id, at, p, place)
		denied := fitCalls(r, id, at, p, place)
		reads := slices.DeleteFunc(slices.Clone(p.ReadsKernelMemoryBy), func(by string) bool { return slices.Contains(denied, by) })
		if len(reads) > 0 && !(isNamed && readsRegisters(n.attached[p.Name], p)) {
			denyProgram(r, id, at, p, calls.ReadsKernel, reads)
		}
	}
}

// describeProgram names a program and its section.
func describeProgram(name string, fact bytecode.Program) string {
	if fact.Section == "" {
		return "program " + name
	}
	return fmt.Sprintf("program %s of section %q", name, fact.Section)
}

// fitKindsOfMaps denies types of maps that no size bounds, or that reach beyond the Pods, and flags that do.
func fitKindsOfMaps(r *denials, id v1alpha1.Identity, maps []bytecode.Map) {
	var all []bytecode.Map
	for _, m := range maps {
		all = append(all, m.Made()...)
	}
	for _, m := range all {
		if why := calls.DeniedMap(m.Type); why != "" {
			r.add("inspect/scope", "spec.bytecode.image", "use a "+v1alpha1.KindClusterBpfApplication+", or an image with a map of another type, such as LRUHash",
				"map %s of type %s %s, and a %s may not have it", m.Name, m.Type, why, id.Kind)
		}
		flags := calls.DeniedFlags(m.Flags)
		for _, name := range sortedKeys(flags) {
			r.add("inspect/scope", "spec.bytecode.image", "take "+name+" out of its map_flags, or use a "+v1alpha1.KindClusterBpfApplication,
				"map %s of type %s has the flag %s, which %s, and a %s may not have it", m.Name, m.Type, name, flags[name], id.Kind)
		}
	}
}

// scope is where the programs of a definition run.
type scope struct {
	// paths and attached are the programs that the definition names.
	paths    map[string]string
	attached map[string][]v1alpha1.Attachment
	// ofType are the places of all programs of a type, and all those of all.
	ofType map[ebpf.ProgramType]calls.Place
	all    calls.Place
	// tails says that programs of a type may tail call each other, and those that nothing names.
	tails bool
}

func scopeOf(programs []v1alpha1.Program, tails bool) scope {
	n := scope{map[string]string{}, map[string][]v1alpha1.Attachment{}, map[ebpf.ProgramType]calls.Place{}, calls.Place{}, tails}
	for i, p := range programs {
		n.paths[p.Name], n.attached[p.Name] = fmt.Sprintf("spec.programs[%d]", i), append(n.attached[p.Name], p.Attach...)
		for _, a := range p.Attach {
			h, _ := hook.Lookup(a.Hook)
			n.ofType[h.ProgramType], n.all = n.ofType[h.ProgramType].And(h), n.all.And(h)
		}
	}
	return n
}

// placeOf is where a program may run: where it is attached, and where a program is that may tail call it.
func (n scope) placeOf(program string) calls.Place {
	if _, isNamed := n.paths[program]; !isNamed {
		return n.all
	}
	var place calls.Place
	for _, a := range n.attached[program] {
		h, _ := hook.Lookup(a.Hook)
		if place = place.And(h); n.tails {
			place = place.Or(n.ofType[h.ProgramType])
		}
	}
	return place
}

// readsRegisters reports whether a program finds the registers of the current task, and nothing
// else, at the addresses that it makes, wherever it is attached. The agent has it read nothing but
// these registers (guard.BoundReads), so an address that is not what it looks like shows nothing.
// A program that is reached otherwise, by a tail call, is none.
func readsRegisters(attached []v1alpha1.Attachment, p bytecode.Program) bool {
	if len(p.ReadsRegistersBy) != 1 {
		return false
	}
	for _, a := range attached {
		for _, target := range targetsOf(a) {
			if hook.RegistersAt(a.Hook, target) != p.ReadsRegistersBy[0] {
				return false
			}
		}
	}
	return len(attached) > 0
}

// targetsOf are the tracepoint or the functions that an attachment names, or one empty target.
func targetsOf(a v1alpha1.Attachment) []string {
	if a.Functions != nil {
		return a.Functions.Names
	}
	return []string{a.Tracepoint}
}

// denyProgram denies a program for what it does by some of its calls.
func denyProgram(r *denials, id v1alpha1.Identity, at string, p bytecode.Program, does string, by []string) {
	instead := cmp.Or(calls.Instead(does), "use an image whose programs do not do so")
	r.add("inspect/scope", at, instead+", or use a "+v1alpha1.KindClusterBpfApplication,
		"program %s %s, and a %s may not: %s", p.Name, does, id.Kind, strings.Join(by, ", "))
}

// fitCalls denies calls of what package calls does not allow where the program runs, and returns
// those that it denies.
func fitCalls(r *denials, id v1alpha1.Identity, at string, p bytecode.Program, in calls.Place) (denied []string) {
	var whys []string
	by := map[string][]string{}
	for _, name := range slices.Concat(p.Helpers, p.Kfuncs, numbers(p.UnknownHelpers)) {
		if why := calls.Denied(name, in); why != "" {
			whys, by[why], denied = append(whys, why), append(by[why], name), append(denied, name)
		}
	}
	slices.Sort(whys)
	for _, why := range slices.Compact(whys) {
		denyProgram(r, id, at, p, why, by[why])
	}
	return denied
}

// fitContext denies what a program does with fields of its context.
func fitContext(r *denials, id v1alpha1.Identity, at string, p bytecode.Program, in calls.Place) {
	if p.WritesRegisters {
		denyProgram(r, id, at, p, "writes registers of the task, which goes on with them, also where it is the container runtime", []string{"a store to its context"})
	}
	if len(p.LiftsRightsBy) > 0 {
		denyProgram(r, id, at, p, calls.LiftsRights, p.LiftsRightsBy)
	}
	if p.ReadsPacketSocket && in.SentPacket {
		denyProgram(r, id, at, p, calls.SeesSocket, []string{"skb->sk"})
	}
}

// numbers are helpers without a name, as facts write them.
func numbers(ids []int64) []string {
	var all []string
	for _, id := range ids {
		all = append(all, fmt.Sprintf("helper %d", id))
	}
	return all
}

// fitDecision denies hooks by which a program answers in place of the kernel for a task. The tasks
// of a Pod are not only its own: the container runtime begins in the Pod's cgroup with all rights of
// the node, at every start and every exec, and asks the kernel to take them away.
func fitDecision(r *denials, id v1alpha1.Identity, at, of string, a v1alpha1.Attachment, h hook.Hook) {
	if h.Risk == hook.Control && (h.Guardable() || h.ProgramType == ebpf.LSM) {
		r.add("inspect/scope", at+".hook", "use a hook that observes, such as fexit or tracepoint, or use a "+v1alpha1.KindClusterBpfApplication,
			"%s: %s decides for the container runtime, too, which takes rights of the node from itself in the Pod's cgroup, "+
				"so that a %s could keep them for its Pods", of, a.Hook, id.Kind)
	}
}

// fitOffset denies a probe in the middle of a function. That of a file is shared by Pods of other namespaces, and their processes run
// what it makes of an instruction. That of the kernel may be another function: the kernel looks for no end of the one that is named.
func fitOffset(r *denials, id v1alpha1.Identity, at, of string, a v1alpha1.Attachment) {
	if a.Binary != nil && a.Binary.Offset != 0 {
		r.add("inspect/scope", at+".binary.offset", "give binary.symbol alone, or use a "+v1alpha1.KindClusterBpfApplication,
			"%s: an offset may lie inside of an instruction, and a %s attaches to the beginning of functions alone: other namespaces run the same file", of, id.Kind)
	}
	if a.Functions != nil && a.Functions.Offset != 0 {
		r.add("inspect/scope", at+".functions.offset", "write functions.names without an offset, which counts before that of a section, or use a "+
			v1alpha1.KindClusterBpfApplication,
			"%s: an offset may lead into another function of the kernel, which others run, and a %s attaches to the beginning of those that are named", of, id.Kind)
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

// fitSubject denies an attachment that needs a guard to a program whose events are not the doing
// of the current task.
func fitSubject(r *denials, id v1alpha1.Identity, at, of string, a v1alpha1.Attachment, fact bytecode.Program) {
	h, ok := hook.Lookup(a.Hook)
	if !ok || a.Pods == nil || !h.Guardable() || len(fact.AsyncCallbacks) > 0 {
		// What runs later is denied for the calls by which it does.
		return
	}
	field := "tracepoint"
	if a.Functions != nil {
		field = "functions"
	}
	for _, target := range targetsOf(a) {
		if fact.SubjectAt(h.Name, target) != hook.Current {
			r.add("inspect/scope", at+"."+field, "attach to a system call, to a function or tracepoint of one, or to a binary, or use a "+
				v1alpha1.KindClusterBpfApplication,
				"%s: %s %s is not known to run for the task alone that causes it, so that a %s would see what other namespaces do", of, h.Name, target, id.Kind)
		}
	}
}
