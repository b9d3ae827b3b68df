package gate

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/placement"
	"github.com/skep-dev/skep/text"
)

// Inspected is a verified request whose bytecode was read and whose definition
// fits it.
type Inspected struct {
	Verified
	// facts are of what the definition has loaded.
	facts bytecode.Facts
	// programs are the definition's, with hook, target and defaults filled in.
	programs []v1alpha1.Program
}

// Inspect fits the definition to the bytecode that was read: functions, maps and
// variables the object has, hooks its programs were built for. It returns a
// *Denial with every reason.
func (e *Evaluator) Inspect(_ context.Context, v Verified) (Inspected, error) {
	if v.object == nil {
		return Inspected{}, fmt.Errorf("inspect: %w", errSkipped)
	}
	id, spec := v.req.Application.Identity(), v.req.Application.Body()
	r := &denials{object: id.String()}
	if !v.object.facts.known() {
		denyObject(r, v.object.facts)
		return Inspected{}, r.err()
	}
	facts := placement.Loaded(v.object.facts.Facts, spec.Programs, spec.Maps)
	programs := make([]v1alpha1.Program, 0, len(spec.Programs))
	for i, p := range spec.Programs {
		fact, ok := facts.Program(p.Name)
		if !ok {
			r.add("inspect/program", fmt.Sprintf("spec.programs[%d].name", i), "use one of: "+strings.Join(programNames(facts), ", "), "the object has no program %q%s",
				p.Name, near(p.Name, programNames(facts)))
			continue
		}
		programs = append(programs, fitProgram(r, id, i, p, fact))
	}
	fitScope(r, id, programs, facts)
	fitLoad(r, id, programs, facts)
	fitMaking(r, id, spec.Maps, facts.Maps)
	fitOnce(r, programs, facts)
	fitMaps(r, spec.Maps, v.object.facts.Facts, facts.Maps)
	fitKernels(r, spec, facts)
	fitSize(r, v.req.Application, programs, facts)
	fitTargets(r, spec, programs)
	r.reasons = append(r.reasons, v.object.incompatible...)
	if err := r.err(); err != nil {
		return Inspected{}, err
	}
	return Inspected{Verified: v, facts: facts, programs: programs}, nil
}

// denyObject says what is wrong with an object: in the inspector's own words
// where it has any.
func denyObject(r *denials, read reading) {
	const path = "spec.bytecode.image"
	if read.Rejected != nil {
		r.add(read.Rejected.Rule, path, read.Rejected.Fix, "%s: %s", read.Rejected.Object, read.Rejected.Reason)
		return
	}
	r.add("inspect/object", path, "build the object (`"+bytecode.Compile+"`) and pack it anew", "the object cannot be read: %s", read.Broken)
}

func programNames(f bytecode.Facts) []string {
	names := make([]string, 0, len(f.Programs))
	for _, p := range f.Programs {
		names = append(names, p.Name)
	}
	return names
}

// near lists the names that are most like one that is not among them.
func near(name string, names []string) string {
	n := text.NewNearest(name)
	for _, one := range names {
		n.Add([]byte(one))
	}
	return n.String()
}

// denySection denies a program without a hook, whose section may be misspelled. Those of libbpf that
// name a type of program alone are not.
func denySection(r *denials, path string, fact bytecode.Program) {
	fix, like := "name the hook", ""
	if hooks := hooksFor(fact.Type); len(hooks) > 0 {
		fix += ": " + strings.Join(hooks, ", ")
	}
	section := strings.TrimPrefix(fact.Section, "?")
	if !slices.Contains([]string{"tc", "classifier", "action", "cgroup/skb"}, section) {
		like = nearSection(section)
	}
	if like != "" {
		fix += ", or write the section as libbpf does"
	}
	r.add("shape/hook", path, fix, "the definition names no hook for program %s, and its section %q implies none%s", fact.Name, fact.Section, like)
}

// hooksFor are the hooks that attach programs of a type; empty for a program without one.
func hooksFor(programType string) []string {
	var names []string
	for _, h := range hook.All() {
		if h.Attachable && h.ProgramType.String() == programType {
			names = append(names, h.Name)
		}
	}
	return names
}

// nearSection lists the sections that are most like one, or else most like what it begins with.
func nearSection(section string) string {
	var sections []string
	for _, h := range hook.All() {
		sections = append(sections, h.Sections...)
	}
	for {
		if like := near(section, sections); like != "" {
			return like
		}
		slash := strings.LastIndexByte(section, '/')
		if slash < 0 {
			return ""
		}
		section = section[:slash]
	}
}

// fitProgram fills in what the section says and checks the result.
func fitProgram(r *denials, id v1alpha1.Identity, i int, p v1alpha1.Program, fact bytecode.Program) v1alpha1.Program {
	if kind, ok := hook.ForMapEntries(fact.Section); ok {
		r.add("inspect/hook", fmt.Sprintf("spec.programs[%d]", i), "take it out of programs, or build it for section xdp",
			"program %s of section %q is for entries of a %s, and attaches nowhere", p.Name, fact.Section, kind)
		return p
	}
	attach := p.Attach
	if len(attach) == 0 {
		attach = []v1alpha1.Attachment{{}}
	}
	filled := v1alpha1.Program{Name: p.Name, Optional: p.Optional}
	first := ebpf.UnspecifiedProgram
	for k, a := range attach {
		at := fmt.Sprintf("spec.programs[%d].attach[%d]", i, k)
		a = fillAttachment(a, fact)
		filled.Attach = append(filled.Attach, a)
		if a.Hook == "" {
			denySection(r, at+".hook", fact)
			continue
		}
		var shape denials
		completeAttachment(&shape, id, at, a)
		for _, why := range shape.reasons {
			// The section may have said what the definition does not.
			r.add(why.Rule, why.Path, why.Fix, "%s: %s", describeProgram(p.Name, fact), why.Message)
		}
		h, ok := hook.Lookup(a.Hook)
		if !ok {
			continue
		}
		fitHook(r, at, h, fact)
		if first == ebpf.UnspecifiedProgram {
			first = h.ProgramType
		}
		if fact.Type == ebpf.UnspecifiedProgram.String() && h.ProgramType != first {
			r.add("inspect/hook", at+".hook", "attach it to hooks for one type of program", "program %s is loaded once as %s for its first hook, and hook %s takes %s",
				p.Name, first, h.Name, h.ProgramType)
		}
	}
	return filled
}

// fitHook denies a hook that takes another kind of program. A program whose
// section says of no type is of the hook's, and the kernel verifies it as that.
// What is wrong with a hook that is not attached was said of its shape.
func fitHook(r *denials, at string, h hook.Hook, fact bytecode.Program) {
	if !h.Attachable || fact.Type == ebpf.UnspecifiedProgram.String() {
		return
	}
	if want := h.ProgramType.String(); fact.Type != want {
		r.add("inspect/hook", at+".hook", "attach the program to the hook its section names, or build it for "+h.Name,
			"program %s is of type %s, and hook %s takes %s", fact.Name, fact.Type, h.Name, want)
		return
	}
	if why, instead := h.TargetObstacle(fact.Target); why != "" {
		r.add("shape/hook", at+".hook", "use "+instead, "program %s is of section %q, which this version of Skep does not attach: %s", fact.Name, fact.Section, why)
		return
	}
	built, ok := hook.Lookup(fact.Hook)
	if !ok || built.AttachType == h.AttachType || h.Shape == hook.NetworkDevice || interchangeable(built, h) {
		return
	}
	r.add("inspect/hook", at+".hook", "attach it to "+built.Name+", or build it for "+h.Name,
		"program %s was built for %s, and the kernel checks it for that hook alone", fact.Name, built.Name)
}

// interchangeable tells hooks whose programs the kernel loads without an
// expected attach type that it would hold them to.
func interchangeable(a, b hook.Hook) bool {
	return a.ProgramType == b.ProgramType && strings.HasPrefix(a.Name, "cgroup_skb/") && strings.HasPrefix(b.Name, "cgroup_skb/")
}

// fillAttachment returns a with hook, target and defaults taken from the
// program's section.
func fillAttachment(a v1alpha1.Attachment, fact bytecode.Program) v1alpha1.Attachment {
	if a.Hook == "" {
		a.Hook = fact.Hook
	}
	h, ok := hook.Lookup(a.Hook)
	if !ok {
		return a
	}
	if fact.Target != "" && fact.Hook == a.Hook {
		fillTarget(&a, h, fact.Target)
	}
	if a.Pods != nil && h.Shape == hook.NetworkDevice && a.Interfaces == nil {
		a.Interfaces = &v1alpha1.Interfaces{Names: []string{v1alpha1.PodInterface}}
	}
	if h.TakesPriority() && a.Priority == nil {
		priority := v1alpha1.DefaultPriority
		a.Priority = &priority
	}
	if h.Name == "xdp" && a.ProceedOn == nil {
		a.ProceedOn = []string{"Pass"}
	}
	return a
}

// fillTarget sets the field of the hook's shape, where the definition left it
// out. Only shapes whose target libbpf writes in section names have one.
func fillTarget(a *v1alpha1.Attachment, h hook.Hook, target string) {
	switch {
	case h.Shape == hook.Tracepoint && a.Tracepoint == "":
		a.Tracepoint = target
	case h.TakesFunctions() && a.Functions == nil:
		a.Functions = functionTarget(h, target)
	case h.Shape == hook.UserBinary && a.Binary == nil:
		a.Binary = binaryTarget(h, target)
	}
}

// functionTarget reads libbpf's function[+offset] or, where the kernel is told the function
// when a program is loaded, [module:]function.
func functionTarget(h hook.Hook, target string) *v1alpha1.Functions {
	if module, name, ok := strings.Cut(target, ":"); ok && h.LoadsForTarget() && h.TakesModule() {
		return &v1alpha1.Functions{Names: []string{name}, Module: module}
	}
	name, offset := cutOffset(target)
	return &v1alpha1.Functions{Names: []string{name}, Offset: offset}
}

// cutOffset splits name+offset. What is no number stays in the name.
func cutOffset(place string) (name string, offset uint64) {
	name, text, found := strings.Cut(place, "+")
	if !found {
		return place, 0
	}
	offset, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		return place, 0
	}
	return name, offset
}

// binaryTarget reads libbpf's path:symbol[+offset], path:glob where the hook attaches to
// many functions, or path:provider:name of a USDT probe; nil where it is not that.
func binaryTarget(h hook.Hook, target string) *v1alpha1.UserBinary {
	file, symbol, ok := strings.Cut(target, ":")
	if !ok || wrongPath(file) {
		return nil
	}
	switch h.InBinary() {
	case hook.InSymbols:
		return &v1alpha1.UserBinary{Path: file, Symbols: &v1alpha1.Symbols{Names: []string{symbol}}}
	case hook.InUSDT:
		provider, name, _ := strings.Cut(symbol, ":")
		return &v1alpha1.UserBinary{Path: file, USDT: &v1alpha1.USDT{Provider: provider, Name: name}}
	}
	b := &v1alpha1.UserBinary{Path: file, Symbol: symbol}
	if name, off, ok := strings.Cut(symbol, "+"); ok {
		n, err := strconv.ParseUint(off, 0, 64)
		if err != nil {
			return nil
		}
		b.Symbol, b.Offset = name, n
	}
	return b
}

// fitMaps denies overrides of maps the object lacks or that have a fixed
// size, and maps that are loaded without a size: all of them at once, since the kernel would name
// one for each attempt.
func fitMaps(r *denials, overrides map[string]v1alpha1.Map, object bytecode.Facts, loaded []bytecode.Map) {
	var names []string
	for _, m := range object.Maps {
		if !isSection(m) {
			names = append(names, m.Name)
		}
	}
	for _, name := range sortedKeys(overrides) {
		fitExports(r, name, overrides[name], object.Maps, loaded)
		fitMetered(r, name, overrides[name], object.Maps, loaded)
		switch isIt := func(m bytecode.Map) bool { return m.Name == name }; {
		case slices.Contains(names, name):
		case !slices.ContainsFunc(object.Maps, isIt):
			r.add("inspect/map", "spec.maps."+name, "use one of: "+strings.Join(names, ", "), "the object has no map %q%s", name, near(name, names))
		case len(overrides[name].Export) == 0 && overrides[name].Metrics == nil: // those are denied above
			r.add("inspect/map", "spec.maps."+name, "remove it, and set spec.variables", "map %s has the variables of the object", name)
		}
	}
	for _, m := range loaded {
		if isSection(m) {
			continue
		}
		fitSharing(r, m, overrides[m.Name])
		if overrides[m.Name].From == nil {
			fitSizes(r, m, overrides[m.Name])
		}
	}
}

// isSection reports whether a map has the variables of the object.
func isSection(m bytecode.Map) bool { return strings.HasPrefix(m.Name, ".") }

// fitSizes denies a map of which neither object nor definition says a size that
// the kernel needs, and a size of values that is the object's to say.
func fitSizes(r *denials, m bytecode.Map, override v1alpha1.Map) {
	at := "spec.maps." + m.Name
	entries, value := m.OpenSizes()
	if entries && override.MaxEntries == nil {
		r.add("inspect/map", at+".maxEntries", "set "+at+".maxEntries to as many as the program needs",
			"map %s of type %s has no number of entries: the object leaves it to its loader", m.Name, m.Type)
	}
	switch {
	case value && override.ValueSize == nil:
		r.add("inspect/map", at+".valueSize", "set "+at+".valueSize to what the program writes, in bytes",
			"map %s of type %s has no size of values: the object leaves it to its loader", m.Name, m.Type)
	case !value && override.ValueSize != nil && *override.ValueSize != m.ValueSize:
		r.add("inspect/map", at+".valueSize", "remove valueSize",
			"the size of the values of map %s is the object's: %d bytes", m.Name, m.ValueSize)
	}
}

// sortedKeys makes a walk over a map of the definition repeatable.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
