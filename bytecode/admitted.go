package bytecode

import (
	"fmt"
	"slices"
	"strconv"
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
	{"liftsRights", "gives tasks what they have no capability for", func(p Program) bool { return len(p.LiftsRightsBy) > 0 }},
}

// sealsFlag is how intents name a flag: of a program that has it, and among the sealed calls, which say so that
// the build knew the flag. No name of a call has a space in it, see checkSpaces, but for "helper 7".
func sealsFlag(name string) string { return "fact " + name }

// ownCalls is among the sealed calls where each program's own are sealed, too. They are one word that begins as byPlaces
// does: "calls 4 17" are those at the places 4 and 17 of the sealed calls, counted from 0. Names would be longer than the rest of
// many an intent.
var ownCalls = sealsFlag("ownCalls")

const byPlaces = "calls"

// places is how an intent says which of the sealed calls are a program's own.
func places(calls, own []string) string {
	word := []byte(byPlaces)
	for _, call := range own {
		at, _ := slices.BinarySearch(calls, call)
		word = strconv.AppendInt(append(word, ' '), int64(at), 10)
	}
	return string(word)
}

// callsOf are the sealed calls that a program may make by what an intent has of it: all of an intent that does not know whose they
// are, and none where a place is no number or beyond them.
func callsOf(calls, has []string) (own []string) {
	if !slices.Contains(calls, ownCalls) {
		return calls
	}
	for _, word := range has {
		list, isPlaces := strings.CutPrefix(word, byPlaces+" ")
		if !isPlaces {
			continue
		}
		for text := range strings.SplitSeq(list, " ") {
			at, err := strconv.ParseUint(text, 10, 32)
			if err != nil || at >= uint64(len(calls)) {
				return nil
			}
			own = append(own, calls[at])
		}
	}
	return own
}

// Seal returns what an intent has of programs: all their calls, and by the name of each its own calls, how it
// reads memory of the kernel and which flags it has.
func Seal(programs []Program) (calls []string, has map[string][]string) {
	calls = append(calls, ownCalls)
	for _, f := range flags {
		calls = append(calls, sealsFlag(f.name))
	}
	for _, p := range programs {
		calls = append(calls, p.Calls()...)
	}
	slices.Sort(calls)
	calls = slices.Compact(calls)
	has = map[string][]string{}
	for _, p := range programs {
		if own := p.Calls(); len(own) > 0 {
			has[p.Name] = append(has[p.Name], places(calls, own))
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
	return calls, has
}

// Beyond returns what the program does that is not sealed, and at which instruction; empty where there is
// nothing.
func (p Program) Beyond(calls []string, has map[string][]string) (does, where string) {
	own := callsOf(calls, has[p.Name])
	for _, call := range p.Calls() {
		if !slices.Contains(own, call) {
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
