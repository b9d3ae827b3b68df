package guard

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// keptCallbacks is the function that KeepCallbacks adds, by its symbol and in its type information.
const keptCallbacks, keptCallbacksType = Prefix + "callbacks", "skep_add_callbacks"

// callbacksOfSocket is where the context of a program on sockops has the callbacks of its socket: bpf_sock_ops_cb_flags of struct
// bpf_sock_ops, include/uapi/linux/bpf.h.
const callbacksOfSocket = 84

// KeepCallbacks has every call of bpf_sock_ops_cb_flags_set in the program and in its functions add to what the socket has. All
// programs of a socket have its callbacks together: one that took some away would hide the connection from those that asked for them.
func KeepCallbacks(spec *ebpf.ProgramSpec) error {
	uint32Type := &btf.Int{Name: "unsigned int", Size: 4}
	return substitute(spec, asm.FnSockOpsCbFlagsSet, added{keptCallbacks, &btf.Func{Name: keptCallbacksType, Linkage: btf.StaticFunc,
		Type: &btf.FuncProto{Return: &btf.Int{Name: "long", Size: 8, Encoding: btf.Signed},
			Params: []btf.FuncParam{{Name: "ctx", Type: &btf.Pointer{Target: &btf.Void{}}}, {Name: "callbacks", Type: uint32Type}}}},
		asm.Instructions{
			asm.LoadMem(asm.R0, asm.R1, callbacksOfSocket, asm.Word),
			asm.Or.Reg(asm.R2, asm.R0),
			asm.FnSockOpsCbFlagsSet.Call(),
			asm.Return(),
		}})
}

// added is a function that is added to a program: its symbol, its type in C and its instructions.
type added struct {
	symbol string
	is     *btf.Func
	insns  asm.Instructions
}

// substitute has every call of a helper in the program and in its functions be one of a function that is added to it.
func substitute(spec *ebpf.ProgramSpec, helper asm.BuiltinFunc, by added) error {
	calls, insns := 0, slices.Clone(spec.Instructions)
	for i := range insns {
		if insns[i].Symbol() == by.symbol {
			return fmt.Errorf("bound what %s calls: it has a function %s; rename it in the object", spec.Name, by.symbol)
		}
		if !insns[i].IsBuiltinCall() || asm.BuiltinFunc(insns[i].Constant) != helper {
			continue
		}
		calls++
		insns[i].Src, insns[i].Constant = asm.PseudoCall, -1
		insns[i] = insns[i].WithReference(by.symbol)
	}
	if calls == 0 {
		return nil
	}
	// The kernel wants a type and a line of each function, or of none.
	by.insns[0] = by.insns[0].WithSymbol(by.symbol)
	if insns[0].Source() != nil {
		by.insns[0] = by.insns[0].WithSource(asm.Comment(by.is.Name))
	}
	if btf.FuncMetadata(&insns[0]) != nil {
		by.insns[0] = btf.WithFuncMetadata(by.insns[0], by.is)
	}
	spec.Instructions = slices.Concat(insns, by.insns)
	return nil
}
