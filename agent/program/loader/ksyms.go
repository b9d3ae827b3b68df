package loader

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/bytecode/plain"
)

// pseudoTypeID is BPF_PSEUDO_BTF_ID: a load names a variable of the kernel by its type.
const pseudoTypeID = asm.R3

// settleKsyms has the programs load the kernel's variables that have a type in the object as
// pointers to that type, as libbpf does; the library knows addresses alone. Weak ones that
// the kernel does not have are zero.
func settleKsyms(o *objectfile.Object) error {
	if len(o.TypedKsyms) == 0 {
		return nil
	}
	types, err := plain.Of(btf.LoadKernelSpec())
	if err != nil {
		return err
	}
	ids := map[string]btf.TypeID{}
	for name, weak := range o.TypedKsyms {
		var variable *btf.Var
		err := plain.Error(types.TypeByName(name, &variable))
		if errors.Is(err, btf.ErrNotFound) && weak {
			continue
		}
		if err == nil {
			ids[name], err = plain.Of(types.TypeID(variable))
		}
		if err != nil {
			return fmt.Errorf("variable %s is not in the kernel's type information, or declare it as extern const void or __weak: %w", name, err)
		}
	}
	for _, p := range o.Spec.Programs {
		for i, ins := range p.Instructions {
			if _, typed := o.TypedKsyms[ins.Reference()]; typed && ins.OpCode.IsDWordLoad() {
				p.Instructions[i] = loadVariable(ins, ids[ins.Reference()])
			}
		}
	}
	return nil
}

// loadVariable is an instruction that loads a variable in place of another that loads its
// address, which the library would find out anew.
func loadVariable(old asm.Instruction, id btf.TypeID) asm.Instruction {
	ins := asm.LoadImm(old.Dst, int64(id), asm.DWord).WithSymbol(old.Symbol()).WithSource(old.Source())
	if id != 0 {
		ins.Src = pseudoTypeID
	}
	if f := btf.FuncMetadata(&old); f != nil {
		ins = btf.WithFuncMetadata(ins, f)
	}
	return ins
}
