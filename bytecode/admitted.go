package bytecode

import (
	"fmt"
	"slices"
	"strings"
)

// What follows names the facts of a program that decide whether it may run and that a load may change, by
// relocations and constants, so that they can be compared afterwards. The names are part of sealed intents.
// TestEachFactIsSealedOrHoldsOnEveryKernel has the decision on every other fact.

// flags are the facts that a program has or has not, apart from its calls and what it reads.
var flags = []struct {
	// name is the fact's in sealed intents, does what its program does.
	name, does string
	is         func(Program) bool
}{
	{"writesRegisters", "writes registers of a task", func(p Program) bool { return p.WritesRegisters }},
	{"readsPacketSocket", "reads the socket of a packet", func(p Program) bool { return p.ReadsPacketSocket }},
}

// sealsFlag is how intents name a flag: of a program that has it, and among the sealed calls, which say so that
// the build knew the flag. Nothing in C has a space in its name.
func sealsFlag(name string) string { return "fact " + name }

// ownCalls is among the sealed calls where each program's own are sealed, too, and sealsCall is how intents name one of them.
var ownCalls = sealsFlag("calls")

func sealsCall(name string) string { return "call " + name }

// Seal returns what an intent has of programs: all their calls, and by the name of each its own calls, how it
// reads memory of the kernel and which flags it has.
func Seal(programs []Program) (calls []string, has map[string][]string) {
	calls = append(calls, ownCalls)
	for _, f := range flags {
		calls = append(calls, sealsFlag(f.name))
	}
	has = map[string][]string{}
	for _, p := range programs {
		for _, call := range p.Calls() {
			calls = append(calls, call)
			has[p.Name] = append(has[p.Name], sealsCall(call))
		}
		for _, read := range p.KernelReads() {
			has[p.Name] = append(has[p.Name], read.By)
		}
		for _, f := range flags {
			if f.is(p) {
				has[p.Name] = append(has[p.Name], sealsFlag(f.name))
			}
		}
	}
	slices.Sort(calls)
	return slices.Compact(calls), has
}

// Beyond returns what the program does that is not sealed, and at which instruction; empty where there is
// nothing.
func (p Program) Beyond(calls []string, has map[string][]string) (does, where string) {
	for _, call := range p.Calls() {
		isOwn := slices.Contains(has[p.Name], sealsCall(call)) || !slices.Contains(calls, ownCalls)
		if !slices.Contains(calls, call) || !isOwn {
			return "uses " + call, ""
		}
	}
	for _, read := range p.KernelReads() {
		if !slices.ContainsFunc(has[p.Name], read.isWithin) {
			return read.Does(), read.Where
		}
	}
	for _, f := range flags {
		if f.is(p) && slices.Contains(calls, sealsFlag(f.name)) && !slices.Contains(has[p.Name], sealsFlag(f.name)) {
			return f.does, ""
		}
	}
	return "", ""
}

// Calls are the helpers, kfuncs and variables of the kernel that the program uses, and may_goto, by
// name and sorted.
func (p Program) Calls() []string {
	all := slices.Concat(p.Helpers, p.Kfuncs, p.Ksyms, p.RepeatsBy)
	for _, id := range p.UnknownHelpers {
		all = append(all, unknownHelper(id))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func unknownHelper(id int64) string { return fmt.Sprintf("helper %d", id) }

// KernelRead is one way by which a program reads memory of the kernel.
type KernelRead struct {
	// By is a name of Program.Calls, "variable " and one, "a load", or "registers in its " and where
	// they are.
	By string
	// Where says at which instruction a load is, for people; empty of other ways.
	Where string
}

// What By says of a load through a pointer, and of a call that copies from one; and how it begins
// of variables and of registers.
const (
	byLoad      = "a load"
	byVariable  = "variable "
	byRegisters = "registers in its "
)

// Does says what a program with the read does.
func (r KernelRead) Does() string { return "reads memory of the kernel by " + r.By }

// isWithin reports whether a read is one of those that were sealed under a name.
func (r KernelRead) isWithin(by string) bool {
	return r.By == by || by == readsRegisters && strings.HasPrefix(r.By, byRegisters)
}

// KernelReads are the ways in which the program reads memory of the kernel, each once: in the place
// of a helper that reads nothing but registers, where these are.
func (p Program) KernelReads() []KernelRead {
	var all []KernelRead
	for _, by := range p.ReadsRegistersBy {
		all = append(all, KernelRead{By: byRegisters + string(by)})
	}
	if all != nil {
		return all
	}
	calls := p.Calls()
	for _, by := range p.ReadsKernelMemoryBy {
		if slices.Contains(calls, by) || strings.HasPrefix(by, byVariable) {
			all = append(all, KernelRead{By: by})
		} else {
			all = append(all, KernelRead{byLoad, by})
		}
	}
	return all
}
