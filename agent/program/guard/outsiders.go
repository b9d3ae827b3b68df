package guard

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/bytecode/plain"
)

// The value of the map of outsiders: a number of the agent's, the epoch, and places for
// cgroups that a guard found not to be in the scope, by the upper bits of the product of
// their ids and the multiplier. A place holds the exclusive or of the id and the epoch.
//
// The caller that adds to the scope sets the epoch to 0 before, so that nothing is read or written,
// and to a random one after. What was found for a former epoch is then no cgroup's. An
// entry only ever keeps a program from running.
const (
	outsidersBits  = 9
	outsidersAt    = 8
	outsidersBytes = outsidersAt + 8<<outsidersBits
)

// leastLevels is from how many levels on outsiders are remembered: to ask for a task's own
// cgroup costs as much as to ask for one of its ancestors.
const leastLevels = 2

// Slots of the stack, in bytes from its end.
const (
	slotCgroup   = -8
	slotOutsider = -16
)

// outsiders is how the guard of a program that cannot walk remembers the cgroups that do
// not match, so that their tasks cost one call of a helper and not one for each level.
type outsiders struct{ scope string }

// checkWords and rememberWords are how long the instructions of outsiders are.
const (
	checkWords    = 16
	rememberWords = 11
)

// check goes on at end, in words behind its own, where the current task's own cgroup is
// remembered. Otherwise what would be remembered of it is on the stack afterwards, or 0 where
// the scope remembers none, and R9 points to eight bytes before its place.
func (o *outsiders) check(end int) asm.Instructions {
	if o == nil {
		return nil
	}
	return asm.Instructions{
		// Two words.
		asm.LoadMapValue(asm.R9, 0, 0).WithReference(outsidersName(o.scope)),
		asm.LoadMem(asm.R1, asm.R9, 0, asm.DWord),
		asm.StoreMem(asm.RFP, slotOutsider, asm.R1, asm.DWord),
		jump(asm.JEq, asm.R1, 0, 4, checkWords),
		asm.FnGetCurrentCgroupId.Call(),
		asm.LoadMem(asm.R1, asm.RFP, slotOutsider, asm.DWord),
		asm.Xor.Reg(asm.R1, asm.R0),
		asm.Mul.Reg(asm.R0, asm.R8),
		asm.RSh.Imm(asm.R0, 64-outsidersBits),
		asm.LSh.Imm(asm.R0, 3),
		asm.Add.Reg(asm.R9, asm.R0),
		asm.LoadMem(asm.R2, asm.R9, outsidersAt, asm.DWord),
		asm.Xor.Reg(asm.R2, asm.R1),
		jump(asm.JEq, asm.R2, 0, 14, checkWords+end),
		// A full barrier, too: the members are read after the epoch.
		exchange(asm.RFP, asm.R1, slotOutsider),
	}
}

// remember writes what is on the stack to its place, unless the task was moved to another
// cgroup since, or the epoch is another.
func (o *outsiders) remember() asm.Instructions {
	if o == nil {
		return nil
	}
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.RFP, slotOutsider, asm.DWord),
		jump(asm.JEq, asm.R1, 0, 1, rememberWords),
		asm.FnGetCurrentCgroupId.Call(),
		// Two words.
		asm.LoadMapValue(asm.R2, 0, 0).WithReference(outsidersName(o.scope)),
		asm.LoadMem(asm.R2, asm.R2, 0, asm.DWord),
		asm.Xor.Reg(asm.R2, asm.R0),
		asm.LoadMem(asm.R1, asm.RFP, slotOutsider, asm.DWord),
		asm.Xor.Reg(asm.R2, asm.R1),
		jump(asm.JNE, asm.R2, 0, 9, rememberWords),
		asm.StoreMem(asm.R9, outsidersAt, asm.R1, asm.DWord),
	}
}

// exchange swaps a register with what is in memory. The library writes the operation into the
// kernel's instruction only where the constant has it, too.
func exchange(dst, src asm.Register, at int16) asm.Instruction {
	ins := asm.Xchg.Mem(dst, src, asm.DWord, at)
	ins.Constant = int64(asm.Xchg >> 8)
	return ins
}

// setEpoch begins an epoch in which the guards of a scope remember outsiders, or one in which
// they remember none. It forgets all of the former.
func (s Scope) setEpoch(remembers bool) error {
	if s.outsiders == nil {
		return nil
	}
	value := make([]byte, outsidersBytes)
	for remembers && binary.NativeEndian.Uint64(value) == 0 {
		// It never fails.
		_, _ = rand.Read(value[:outsidersAt])
	}
	if err := plain.Error(s.outsiders.Put(uint32(0), value)); err != nil {
		return fmt.Errorf("forget outsiders of scope: %w", err)
	}
	return nil
}

// remembers reports whether the scope is in an epoch in which outsiders are remembered.
func (s Scope) remembers() (bool, error) {
	if s.outsiders == nil {
		return false, nil
	}
	value, err := plain.Of(s.outsiders.LookupBytes(uint32(0)))
	if err != nil {
		return false, fmt.Errorf("read epoch of scope: %w", err)
	}
	return binary.NativeEndian.Uint64(value) != 0, nil
}
