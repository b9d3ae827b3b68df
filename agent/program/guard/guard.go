// Package guard puts a scope guard before programs: instructions that end a program at
// once unless the current task is in one of the cgroups of a scope. What a scope holds is
// kept in two maps that the agent writes.
//
// It owns the instructions, the maps and how they are written. It does not know pods or
// containers: who calls it says which cgroups belong to a scope. It guards nothing whose
// subject is not the current task, such as a packet: see hook.Hook.IsGuarded.
//
// A tail call starts a program without its guard: it runs for the task that the caller's
// guard let in. A timer, a work queue and task work run their callbacks later, for any
// task, and the guard cannot see that: bytecode.Program.Subject says which programs do so.
package guard

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/hook"
)

// UnsupportedError says that programs of a type are not guarded, because what they see is
// not the doing of the current task.
type UnsupportedError struct {
	// Program is the function, Type and AttachType what it is loaded as.
	Program    string
	Type       ebpf.ProgramType
	AttachType ebpf.AttachType
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	kind := e.Type.String()
	if e.AttachType != ebpf.AttachNone {
		kind += " (" + e.AttachType.String() + ")"
	}
	return fmt.Sprintf("put a scope guard before %s: a %s program does not run for a task; attach it without pods, or to a hook of tasks", e.Program, kind)
}

// Put puts the guard of a scope before the program's own instructions. The program then
// refers to the maps that Maps returns for the scope.
//
// A task matches where one of its ancestor cgroups, or its own, is in the scope. For any
// other the program returns what changes nothing: 0, which to LSM and fmod_ret means that
// other programs and the kernel's own function decide, 1 on kprobe.session, which is
// not called then when the function returns, and 1 on cgroups, which lets the call through.
//
// Put uses 16 bytes of the stack and leaves the id of a cgroup there: see ClearFrames, which comes
// first, so that the program clears its stack after the guard let a task in. The program gets its
// context, and nothing else that the guard had in registers: it could read the kernel's memory by
// what leads to cgroups.
func Put(spec *ebpf.ProgramSpec, scope string) error {
	if !supports(spec) {
		return &UnsupportedError{spec.Name, spec.Type, spec.AttachType}
	}
	if len(spec.Instructions) == 0 {
		return errors.New("put a scope guard before " + spec.Name + ": it has no instructions")
	}
	spec.Instructions = before(prologue(spec, scope), spec.Instructions)
	return nil
}

// supports reports whether a hook that programs of the kind attach to can be guarded.
func supports(spec *ebpf.ProgramSpec) bool {
	for _, h := range hook.All() {
		if h.ProgramType == spec.Type && h.IsGuarded(true) && (h.AttachType == spec.AttachType || !toldByAttachType(spec.Type)) {
			return true
		}
	}
	return false
}

// toldByAttachType reports whether only the attach type says on which hook programs of a type run.
func toldByAttachType(t ebpf.ProgramType) bool {
	return slices.Contains([]ebpf.ProgramType{ebpf.Tracing, ebpf.LSM, ebpf.CGroupSock}, t)
}

// neutral is what the program returns for a task outside of the scope.
func neutral(spec *ebpf.ProgramSpec) int32 {
	ofSockets := slices.Contains([]ebpf.ProgramType{ebpf.CGroupSock, ebpf.CGroupSockAddr, ebpf.CGroupSockopt}, spec.Type)
	if ofSockets || spec.AttachType == ebpf.AttachTraceKprobeSession {
		return 1
	}
	return 0
}

// prologue is the instructions of the guard. The program's own follow them.
//
// R6 is the program's context, R7 the value of the map of levels, R8 the multiplier of the
// filter, and R9 the current task's cgroup where the program may read it, or the place of
// that cgroup among the outsiders.
func prologue(spec *ebpf.ProgramSpec, scope string) asm.Instructions {
	task := walkable(spec)
	var others *outsiders
	if task == nil {
		others = &outsiders{scope}
	}
	insns := append(asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMapValue(asm.R7, 0, 0).WithReference(levelsName(scope)),
		asm.LoadImm(asm.R8, multiplier, asm.DWord),
	}, task.find()...)
	remember := others.remember()
	// A level has one instruction of two words, the load of the map.
	size := len(level(scope, 0, task, 0)) + 1
	insns = append(insns, others.check(MaxLevels*size+rememberWords)...)
	for i := range MaxLevels {
		// What follows the last level are two instructions for tasks that do not match.
		match := (MaxLevels-i)*size + 2
		if others != nil {
			match += rememberWords
		}
		insns = append(insns, level(scope, i, task, match)...)
	}
	insns = append(insns, remember...)
	return append(insns,
		asm.Mov.Imm(asm.R0, neutral(spec)), asm.Return(),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R0, 0), asm.Mov.Imm(asm.R7, 0), asm.Mov.Imm(asm.R8, 0), asm.Mov.Imm(asm.R9, 0))
}

// level compares the current task's cgroup at one of the scope's levels: first with the
// filter, which is in reach without a call, and what passes it with the cgroups. Where it is
// one of them, it goes on at match, in words from its own begin. Jumps are by number: names
// of labels could be those of the object's functions.
func level(scope string, i int, task *fields, match int) asm.Instructions {
	ancestor := task.ancestor()
	at := 2 + len(ancestor)
	next := at + 18
	insns := append(asm.Instructions{
		asm.LoadMem(asm.R1, asm.R7, int16(levelBytes*i), asm.Word),
		jump(asm.JEq, asm.R1, 0, 1, next),
	}, ancestor...)
	return append(insns,
		jump(asm.JEq, asm.R0, 0, at, next),
		asm.StoreMem(asm.RFP, slotCgroup, asm.R0, asm.DWord),
		asm.Mul.Reg(asm.R0, asm.R8),
		asm.RSh.Imm(asm.R0, filterShift),
		asm.Mov.Reg(asm.R2, asm.R0),
		asm.RSh.Imm(asm.R2, 3),
		asm.Add.Reg(asm.R2, asm.R7),
		asm.LoadMem(asm.R2, asm.R2, filterAt, asm.Byte),
		asm.And.Imm(asm.R0, 7),
		asm.RSh.Reg(asm.R2, asm.R0),
		asm.And.Imm(asm.R2, 1),
		jump(asm.JEq, asm.R2, 0, at+11, next),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotCgroup),
		asm.LoadMapPtr(asm.R1, 0).WithReference(cgroupsName(scope)),
		asm.FnMapLookupElem.Call(),
		// The load of the map takes two words.
		jump(asm.JNE, asm.R0, 0, at+17, match))
}

// jump compares a register with a number at one word and goes on at another.
func jump(op asm.JumpOp, register asm.Register, with int64, at, to int) asm.Instruction {
	return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(op).SetSource(asm.ImmSource), Dst: register, Constant: with, Offset: int16(to - at - 1)}
}
