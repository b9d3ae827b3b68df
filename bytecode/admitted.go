package bytecode

import (
	"fmt"
	"slices"
	"strings"
)

// What follows names the facts of a program that decide whether it may run, so that they can be
// compared after its instructions were relocated. The names are part of sealed intents.

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

// IsWithin reports whether a read is one of those that were admitted under a name.
func (r KernelRead) IsWithin(by string) bool {
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
