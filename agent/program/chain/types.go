package chain

import (
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// entryFunc is the type of a member and of the dispatcher. The verifier walks
// a global function by itself and accepts a context only where its BTF says
// struct xdp_md *: objects that say void *, or nothing, are given this one.
func entryFunc(name string) *btf.Func {
	return &btf.Func{
		Name:    name,
		Linkage: btf.GlobalFunc,
		Type: &btf.FuncProto{
			Return: integer(),
			Params: []btf.FuncParam{{Name: "ctx", Type: &btf.Pointer{Target: xdpMD()}}},
		},
	}
}

// staticFunc stands for a function without BTF. The kernel wants type
// information for every function or for none; it checks the arguments of a
// static one by walking it, not by this.
func staticFunc(name string) *btf.Func {
	return &btf.Func{
		Name:    name,
		Linkage: btf.StaticFunc,
		Type:    &btf.FuncProto{Return: integer()},
	}
}

func integer() *btf.Int {
	return &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
}

// xdpMD is struct xdp_md of include/uapi/linux/bpf.h.
func xdpMD() *btf.Struct {
	word := &btf.Int{Name: "unsigned int", Size: 4}
	md := &btf.Struct{Name: "xdp_md"}
	for _, field := range []string{"data", "data_end", "data_meta", "ingress_ifindex", "rx_queue_index", "egress_ifindex"} {
		md.Members = append(md.Members, btf.Member{Name: field, Type: word, Offset: btf.Bits(md.Size * 8)})
		md.Size += word.Size
	}
	return md
}

// describe gives the instruction at the start of a function the type and the
// source line the kernel asks for. The member's own function becomes a global
// one that takes the context; others keep what they have.
func describe(ins asm.Instruction, at int, starts map[int]string) asm.Instruction {
	name, ok := starts[at]
	if !ok {
		return ins
	}
	switch {
	case at == 0:
		ins = btf.WithFuncMetadata(ins, entryFunc(identifier(name)))
	case btf.FuncMetadata(&ins) == nil:
		ins = btf.WithFuncMetadata(ins, staticFunc(identifier(name)))
	}
	if ins.Source() == nil {
		ins = ins.WithSource(asm.Comment("skep: no source of " + name))
	}
	return ins
}

// identifier makes a name the kernel takes for a function's, as
// btf_name_valid_identifier has it: letters, digits, underscores and dots, no
// digit first, at most 127 bytes.
func identifier(name string) string {
	out := []byte(name)
	for i, c := range out {
		letter := c == '_' || c == '.' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		digit := '0' <= c && c <= '9'
		if !letter && (!digit || i == 0) {
			out[i] = '_'
		}
	}
	return string(out[:min(len(out), 127)])
}
