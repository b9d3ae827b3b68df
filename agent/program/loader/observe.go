package loader

import (
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// observed is the symbol and type of a socket filter that another function calls.
const observed = "skep_observed"

// next is what a program of a device's traffic returns so that the next one decides: TCX_NEXT,
// NETKIT_NEXT and TC_ACT_UNSPEC of linux/bpf.h, linux/netkit.h and linux/pkt_cls.h.
const next = -1

// observe has a socket filter decide nothing of the packets that it sees. It returns how many bytes
// of a packet a socket gets, which a device would take for a verdict, so a function of no other
// instructions calls it and returns next. What it tail calls returns there, too, and so does a load
// of bytes that the packet does not have (BPF_LD_ABS), which ends a function with 0.
func observe(ps *ebpf.ProgramSpec) error {
	if len(ps.Instructions) == 0 {
		return errors.New("it has no instructions")
	}
	first := ps.Instructions[0]
	call := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall, Constant: -1}.
		WithReference(observed).WithSymbol(first.Symbol()).WithSource(first.Source())
	if f := btf.FuncMetadata(&first); f != nil {
		call = btf.WithFuncMetadata(call, f)
		// The kernel follows a static function from where it is called, whatever type its context has.
		inner := *f
		inner.Name, inner.Linkage = observed, btf.StaticFunc
		first = btf.WithFuncMetadata(first, &inner)
	}
	caller := asm.Instructions{call, asm.Mov.Imm(asm.R0, next), asm.Return()}
	ps.Instructions = append(append(caller, first.WithSymbol(observed)), ps.Instructions[1:]...)
	return nil
}
