// Package relocate applies CO-RE relocations to programs as the library does when it loads them, so
// that the instructions that are loaded can be looked at before. It loads nothing.
package relocate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/bytecode/plain"
)

// Targets is the type information of the kernel that runs and of its modules, the kernel's first:
// what the library relocates for.
func Targets(cache *btf.Cache) ([]*btf.Spec, error) {
	kernel, err := plain.Of(cache.Kernel())
	if err != nil {
		return nil, fmt.Errorf("read the kernel's type information: %w", err)
	}
	all := []*btf.Spec{kernel}
	modules, err := plain.Of(cache.Modules())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list modules with type information: %w", err)
	}
	for _, module := range modules {
		types, err := plain.Of(cache.Module(module))
		if err != nil {
			return nil, fmt.Errorf("read type information of module %s: %w", module, err)
		}
		all = append(all, types)
	}
	return all, nil
}

// ByteOrder is this machine's as the library takes it.
func ByteOrder() binary.ByteOrder {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return binary.LittleEndian
	}
	return binary.BigEndian
}

// IsPending reports whether an instruction is to be relocated for a kernel. The number of a type in
// the object itself is none: the library gives it when it writes the types of a program.
func IsPending(ins *asm.Instruction) bool {
	r := btf.CORERelocationMetadata(ins)
	return r != nil && !strings.HasPrefix(r.String(), "CORERelocation(local_type_id, ")
}

// HasPending reports whether any of the instructions is to be relocated for a kernel.
func HasPending(insns asm.Instructions) bool {
	return slices.ContainsFunc(insns, func(i asm.Instruction) bool { return IsPending(&i) })
}

// Apply relocates the instructions of a program and of all that it calls, in place, where the
// targets have what they read. It returns the places of the others, which stay as they are: see
// Poison.
func Apply(insns asm.Instructions, targets []*btf.Spec) (lacking []int, err error) {
	var relocations []*btf.CORERelocation
	var at []int
	for i := range insns {
		if IsPending(&insns[i]) {
			relocations, at = append(relocations, btf.CORERelocationMetadata(&insns[i])), append(at, i)
		}
	}
	if len(at) == 0 {
		return nil, nil
	}
	order := ByteOrder()
	fixups, err := plain.Of(btf.CORERelocate(relocations, targets, order, func(t btf.Type) (btf.TypeID, error) {
		return 0, fmt.Errorf("%s is a type of the object", t.TypeName())
	}))
	if err != nil {
		return nil, err
	}
	for i := range fixups {
		applied := insns[at[i]]
		if err := plain.Error(fixups[i].Apply(&applied)); err != nil {
			return nil, fmt.Errorf("instruction %d: %s: %w", at[i], relocations[i], err)
		}
		if isPoison(&applied) {
			lacking = append(lacking, at[i])
			continue
		}
		insns[at[i]] = btf.WithCORERelocationMetadata(applied, nil)
	}
	return lacking, nil
}

// isPoison reports whether an instruction is one that the library puts in the place of another
// which reads what the kernel lacks.
func isPoison(ins *asm.Instruction) bool {
	return ins.Constant == btf.COREBadRelocationSentinel && (ins.IsBuiltinCall() || ins.OpCode.IsDWordLoad() && ins.Dst == asm.R10)
}

// poisoned begins the line of source of a poisoned instruction, as the verifier's log shows it.
const poisoned = "CO-RE: this kernel lacks "

// Poison puts instructions that no kernel takes where a program reads what the kernel lacks, as the
// library does: it loads if nothing leads there. types are the object's.
func Poison(insns asm.Instructions, lacking []int, types *btf.Spec) {
	for _, i := range lacking {
		old := &insns[i]
		ins := asm.BuiltinFunc(btf.COREBadRelocationSentinel).Call()
		if old.OpCode.IsDWordLoad() {
			ins = asm.LoadImm(asm.R10, btf.COREBadRelocationSentinel, asm.DWord)
		}
		ins = ins.WithSymbol(old.Symbol()).WithSource(asm.Comment(poisoned + nameOf(types, btf.CORERelocationMetadata(old))))
		if fn := btf.FuncMetadata(old); fn != nil {
			ins = btf.WithFuncMetadata(ins, fn)
		}
		insns[i] = ins
	}
}

// Lacking is what a poisoned instruction was to read; empty for others, and where it is not known.
func Lacking(ins *asm.Instruction) string {
	if ins.Source() == nil {
		return ""
	}
	name, _ := strings.CutPrefix(ins.Source().String(), poisoned)
	if name == ins.Source().String() {
		return ""
	}
	return name
}
