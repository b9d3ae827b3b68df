package usdt

import (
	"fmt"

	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/bytecode/plain"
)

// SpecsMap is the map of usdt.bpf.h that has the specs of probes, by their id.
const SpecsMap = "__bpf_usdt_specs"

// specType is the type of the map's values.
const specType = "__bpf_usdt_spec"

// layout is struct __bpf_usdt_spec of libbpf before 1.7, for objects without BTF.
func layout() *btf.Struct {
	member := func(name string, size, at uint32) btf.Member {
		return btf.Member{Name: name, Type: &btf.Int{Size: size}, Offset: btf.Bits(at * 8)}
	}
	argument := &btf.Struct{Name: "__bpf_usdt_arg_spec", Size: 16, Members: []btf.Member{
		member("val_off", 8, 0), member("arg_type", 4, 8), member("reg_off", 2, 12), member("arg_signed", 1, 14), member("arg_bitshift", 1, 15)}}
	return &btf.Struct{Name: specType, Size: 208, Members: []btf.Member{
		{Name: "args", Type: &btf.Array{Type: argument, Nelems: maxArguments}}, member("usdt_cookie", 8, 192), member("arg_cnt", 2, 200)}}
}

// Encode writes the spec as the values of the object's own type, or of libbpf before 1.7
// where types is nil. An argument in an array needs libbpf 1.7: before, bpf_usdt_arg fails
// for it.
func (s Spec) Encode(types *btf.Spec) ([]byte, error) {
	t := layout()
	if types != nil {
		if err := plain.Error(types.TypeByName(specType, &t)); err != nil {
			return nil, fmt.Errorf("find type %s of %s: %w", specType, SpecsMap, err)
		}
	}
	args, err := memberOf(t, "args")
	if err != nil {
		return nil, err
	}
	array, ok := btf.UnderlyingType(args.Type).(*btf.Array)
	if !ok || array.Nelems < uint32(len(s.arguments)) {
		return nil, fmt.Errorf("%s.args is not an array of %d arguments", specType, maxArguments)
	}
	one, ok := btf.UnderlyingType(array.Type).(*btf.Struct)
	if !ok || t.Size > 1<<12 || uint64(args.Offset.Bytes())+uint64(one.Size)*uint64(array.Nelems) > uint64(t.Size) {
		return nil, fmt.Errorf("%s.args lies outside of its struct", specType)
	}
	w := writer{value: make([]byte, t.Size)}
	w.put(t, 0, "arg_cnt", uint64(len(s.arguments)))
	for i, a := range s.arguments {
		w.argument(one, args.Offset+btf.Bits(uint32(i)*one.Size*8), a)
	}
	return w.value, w.err
}

// writer writes members of structs, up to the first error.
type writer struct {
	value []byte
	err   error
}

// argument writes one argument, whose struct begins at a bit.
func (w *writer) argument(t *btf.Struct, at btf.Bits, a argument) {
	signed := uint64(0)
	if a.signed {
		signed = 1
	}
	w.put(t, at, "val_off", uint64(a.value))
	w.put(t, at, "arg_type", uint64(a.kind))
	w.put(t, at, "reg_off", a.register)
	w.put(t, at, "arg_signed", signed)
	w.put(t, at, "arg_bitshift", uint64(64-8*a.size))
	if _, err := memberOf(t, "idx_reg_off"); err == nil {
		w.put(t, at, "idx_reg_off", a.index)
		w.put(t, at, "scale_bitshift", a.shift)
	}
}

// put writes a number into a member, bit by bit from the lowest.
func (w *writer) put(t *btf.Struct, at btf.Bits, name string, n uint64) {
	if w.err != nil {
		return
	}
	m, err := memberOf(t, name)
	if err != nil {
		w.err = err
		return
	}
	size := m.BitfieldSize
	if size == 0 {
		bytes, err := plain.Of(btf.Sizeof(m.Type))
		if err != nil {
			w.err = fmt.Errorf("find the size of %s.%s: %w", t.Name, name, err)
			return
		}
		size = btf.Bits(bytes * 8)
	}
	at += m.Offset
	if uint64(at)+uint64(size) > uint64(len(w.value))*8 {
		w.err = fmt.Errorf("%s.%s lies outside of its struct", t.Name, name)
		return
	}
	for i := range min(size, 64) {
		w.value[(at+i)/8] |= byte(n>>i&1) << ((at + i) % 8)
	}
}

func memberOf(t *btf.Struct, name string) (btf.Member, error) {
	for _, m := range t.Members {
		if m.Name == name {
			return m, nil
		}
	}
	return btf.Member{}, fmt.Errorf("%s has no %s: it is not that of libbpf's usdt.bpf.h", t.Name, name)
}
