package bytecode

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/bytecode/answers"
	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/hook"
)

// Program flags from include/uapi/linux/bpf.h.
const (
	flagSleepable = 1 << 4
	flagXDPFrags  = 1 << 5
)

// unfollowed stands in UnknownHelpers for a call whose target no tool can tell
// before it runs: by register, or by a mode the kernel does not have yet.
const unfollowed = -1

// inspected is a program's facts while they are gathered.
type inspected struct {
	facts Program
	needs needs
	core  bool
	// functions are the symbols that the linked program holds.
	functions map[string]bool
	helpers   map[string]Helper
	kfuncs    map[string]bool
	ksyms     map[string]bool
	maps      map[string]bool
	missing   map[string]bool
	unknown   map[int64]bool
}

// InspectProgram says what one linked program of an object does, as Inspect does of all of a file.
// It holds for the instructions as they are now: they may have been changed since the object was read.
func InspectProgram(object *objectfile.Object, name string) (Program, error) {
	p, err := inspectProgram(object, name)
	if err != nil {
		return Program{}, err
	}
	return p.facts, nil
}

// inspectProgram reads one linked program.
func inspectProgram(object *objectfile.Object, name string) (*inspected, error) {
	spec := object.Spec
	s := spec.Programs[name]
	row, target, _ := hook.FromSection(s.SectionName)
	if object.SocketFilters[name] {
		// Whatever follows the word in the name of the section.
		row, _ = hook.Lookup("socket")
	}
	license := cutNUL(s.License)
	p := &inspected{
		facts: Program{
			Name:          name,
			Section:       s.SectionName,
			Hook:          row.Name,
			Target:        target,
			Type:          s.Type.String(),
			Sleepable:     s.Flags&flagSleepable != 0,
			Frags:         s.Flags&flagXDPFrags != 0,
			Instructions:  int(s.Instructions.Size() / asm.InstructionSize),
			License:       license,
			GPLCompatible: GPLCompatible(license),
		},
		functions: map[string]bool{},
		helpers:   map[string]Helper{},
		kfuncs:    map[string]bool{},
		ksyms:     map[string]bool{},
		maps:      map[string]bool{},
		missing:   map[string]bool{},
		unknown:   map[int64]bool{},
	}
	p.facts.AttachType = attachType(s)
	p.needs = programNeeds(s, row)
	if err := p.walk(spec, s.Instructions); err != nil {
		return nil, fmt.Errorf("program %s: %w", name, err)
	}
	p.finish(s.Type)
	w := WorkOf(s.Type, s.Instructions)
	p.facts.Translated, p.facts.Rewrites, p.facts.LoadCost = w.Translated, w.Rewrites, w.Prefixed().Cost()
	p.finishSubject(s.Type)
	p.finishRepeats(s.Instructions)
	p.finishReads(s.Type, s.Instructions)
	p.finishContext(s.Type, s.Instructions)
	if s.Type == ebpf.SchedCLS || s.Type == ebpf.UnspecifiedProgram {
		p.facts.Answers = answers.Lost(s.Instructions)
	}
	p.finishObstacles(s.Instructions)
	return p, nil
}

// attachType names the expected attach type. The kernel's numbers begin at 0,
// which is also how "none" is written, save where ingress is meant.
func attachType(s *ebpf.ProgramSpec) string {
	switch {
	case s.AttachType != ebpf.AttachNone:
		return s.AttachType.String()
	case s.Type == ebpf.CGroupSKB:
		return "CGroupInetIngress"
	}
	return ""
}

// walk visits every instruction of the program and of what it reaches.
func (p *inspected) walk(spec *ebpf.CollectionSpec, insns asm.Instructions) error {
	for i := range insns {
		if symbol := insns[i].Symbol(); symbol != "" {
			p.functions[symbol] = true
		}
	}
	for i := range insns {
		ins := &insns[i]
		if err := errors.Join(checkRelocated(ins, i), checkRegisters(ins, p.facts.Name)); err != nil {
			return err
		}
		p.core = p.core || btf.CORERelocationMetadata(ins) != nil
		p.needs.instruction(ins, p.facts.Name)
		var err error
		switch {
		case ins.OpCode.JumpOp() == asm.Call:
			err = p.call(ins, i)
		case ins.OpCode.IsDWordLoad():
			err = p.load(spec, ins, i)
		}
		if err != nil {
			return err
		}
	}
	if p.core {
		p.needs.add("5.4", "CO-RE relocations against the kernel's BTF", p.facts.Name)
	}
	return nil
}

// checkRegisters rejects registers that the kernel does not have: an instruction has room for 16, and
// what follows values through registers has no place for them.
func checkRegisters(ins *asm.Instruction, program string) error {
	if ins.Dst <= asm.RFP && ins.Src <= asm.RFP {
		return nil
	}
	return &Rejection{
		Rule:   "bytecode/no-such-register",
		Object: "program " + printable(program),
		Reason: fmt.Sprintf("an instruction names register %d, and the last is 10", max(ins.Dst, ins.Src)),
		Fix:    "build the object from source: " + Compile,
	}
}

// call notes who is called.
func (p *inspected) call(ins *asm.Instruction, at int) error {
	if ins.OpCode.Source() == asm.RegSource {
		p.unknown[unfollowed] = true
		return nil
	}
	switch ins.Src {
	case asm.R0:
		p.helper(ins.Constant)
	case asm.PseudoCall:
		return p.function(ins, at)
	case asm.PseudoKfuncCall:
		p.kfuncs[ins.Reference()] = true
	default:
		p.unknown[unfollowed] = true
	}
	return nil
}

// helper notes a call by number.
func (p *inspected) helper(id int64) {
	if uint32(id) == btf.COREBadRelocationSentinel {
		p.facts.PoisonedCalls++
		return
	}
	h, ok := helperByID(id)
	if !ok {
		p.unknown[id] = true
		return
	}
	p.helpers[h.Name] = h
}

// function notes a call to, or a pointer to, another function of the object,
// whose instructions are already part of the program if the object has them.
func (p *inspected) function(ins *asm.Instruction, at int) error {
	name := ins.Reference()
	switch {
	case name == "":
		return byNumber(fmt.Sprintf("instruction %d", at), "refers to a function")
	case !p.functions[name]:
		p.missing[name] = true
	}
	return nil
}

// load notes what a 64-bit load refers to: a map, a function, a kernel symbol
// or nothing. Loads of anything by number do not get here: checkELF rejects
// them.
func (p *inspected) load(spec *ebpf.CollectionSpec, ins *asm.Instruction, at int) error {
	name := ins.Reference()
	switch ins.Src {
	case asm.PseudoMapFD, asm.PseudoMapValue:
		switch {
		case name == "":
			// The parser drops the names of __kconfig variables.
			p.maps[objectfile.KconfigSection] = true
		case spec.Maps[name] != nil:
			p.maps[name] = true
		default:
			p.missing[name] = true
		}
	case asm.PseudoFunc:
		return p.function(ins, at)
	default:
		if name != "" {
			p.ksyms[name] = true
		}
	}
	return nil
}

// finish sorts what was gathered into the facts.
func (p *inspected) finish(t ebpf.ProgramType) {
	f := &p.facts
	delete(p.functions, f.Name)
	f.Subprograms = optional(p.functions)
	f.Helpers = sortedKeys(p.helpers)
	f.Kfuncs = sortedKeys(p.kfuncs)
	f.Ksyms = optional(p.ksyms)
	f.Maps = sortedKeys(p.maps)
	f.Unresolved = optional(p.missing)
	for id := range p.unknown {
		f.UnknownHelpers = append(f.UnknownHelpers, id)
	}
	slices.Sort(f.UnknownHelpers)
	for _, name := range f.Helpers {
		h := p.helpers[name]
		p.needs.add(h.MinKernel, "helper "+name, f.Name)
		if h.gplOnlyIn(t) {
			f.GPLOnly = append(f.GPLOnly, name)
		}
	}
	for _, name := range f.Kfuncs {
		p.needs.add(kfuncKernel(name), "kfunc "+name, f.Name)
	}
	// The kernel gives no kfunc at all to other licences (add_kfunc_call in
	// kernel/bpf/verifier.c).
	f.GPLOnly = append(f.GPLOnly, f.Kfuncs...)
}

// optional is sortedKeys with nil for none, so that JSON leaves the field out.
func optional(m map[string]bool) []string {
	if len(m) == 0 {
		return nil
	}
	return sortedKeys(m)
}

// byNumber rejects an instruction that names something in the kernel or in its
// loader by number. Compilers emit symbols; a number would mean whatever map or
// function happens to bear it in the process that loads the program.
func byNumber(where, does string) error {
	return &Rejection{
		Rule:   "bytecode/reference-by-number",
		Object: where,
		Reason: "it " + does + " by number instead of by symbol, so nobody can tell what it will mean",
		Fix:    rebuildObject,
	}
}
