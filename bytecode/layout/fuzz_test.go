package layout

import (
	"bytes"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// raw is the type as a BTF section has it.
func raw(f *testing.F, t btf.Type) []byte {
	f.Helper()
	builder, err := btf.NewBuilder([]btf.Type{t}, nil)
	if err != nil {
		f.Fatal(err)
	}
	b, err := builder.Marshal(nil, btf.KernelMarshalOptions())
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// FuzzLayout holds that types are equal where they are when they are written
// out, and that no type takes more than its bounds.
func FuzzLayout(f *testing.F) {
	u32 := &btf.Int{Name: "int", Size: 4}
	f.Add(raw(f, nested(3)))
	f.Add(raw(f, nested(24)))
	f.Add(raw(f, &btf.Struct{Name: "bpf_timer", Size: 8, Members: []btf.Member{{Name: "a", Type: &btf.Array{Index: u32, Type: u32, Nelems: 2}}}}))
	f.Add(raw(f, &btf.Datasec{Name: ".bss", Size: 4, Vars: []btf.VarSecinfo{{Type: &btf.Var{Name: "x", Type: u32}, Size: 4}}}))
	f.Fuzz(func(t *testing.T, section []byte) {
		spec, err := btf.LoadSpecFromReader(bytes.NewReader(section))
		if err != nil {
			return
		}
		h := New()
		hashes, texts := map[string]string{}, map[string]string{}
		for one, err := range spec.All() {
			if err != nil || len(h.known) > 64 {
				return
			}
			ms := &ebpf.MapSpec{Key: one}
			hash, err := h.Map(ms)
			if err != nil {
				continue
			}
			text, ok := h.text(ms)
			if !ok {
				continue
			}
			if had, ok := hashes[text]; ok && had != hash {
				t.Fatalf("%v: one text, two hashes", one)
			}
			if had, ok := texts[hash]; ok && had != text {
				t.Fatalf("%v: one hash, two texts", one)
			}
			hashes[text], texts[hash] = hash, text
		}
		for _, m := range h.known {
			if m.depth > MaxDepth || m.members > MaxMembers {
				t.Fatalf("beyond a bound: %+v", m)
			}
		}
	})
}
