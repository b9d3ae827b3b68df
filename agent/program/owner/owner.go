// Package owner writes into the kernel whose a program is, beside the program, and reads it. Users
// see it in bpftool prog show.
package owner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/bytecode/plain"
)

// Owner names the application of a program. Skep writes it into the kernel beside each
// program; bpftool prog show and skep inventory print it.
type Owner struct {
	// App is the application's identity; for a chain those of its members, with
	// commas between, and how many more there are.
	App string `json:"app"`
	// UID and Revision name what was loaded. A chain has neither.
	UID      string `json:"uid,omitempty"`
	Revision string `json:"revision,omitempty"`
}

// Variable is printed by bpftool without its first part, as "skep"
// (bpf_metadata_ of tools/bpf/bpftool/prog.c).
const Variable = "bpf_metadata_skep"

// Parse reads what is at Variable, a string of JSON that ends at a zero byte. It
// returns nil if the string names no owner.
func Parse(value []byte) *Owner {
	text, _, _ := bytes.Cut(value, []byte{0})
	var o Owner
	if err := json.Unmarshal(text, &o); err != nil || o.App == "" {
		return nil
	}
	return &o
}

// asMap holds the owner as bpftool looks for it, frozen.
func asMap(o Owner) (*ebpf.MapSpec, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("write owner: %w", err)
	}
	value := append(slices.Clone(text), 0)
	size := uint32(len(value))
	return &ebpf.MapSpec{
		// The library freezes what is called so.
		Name: ".rodata.skep", Type: ebpf.Array, KeySize: 4, ValueSize: size, MaxEntries: 1,
		Flags: unix.BPF_F_RDONLY_PROG,
		Key:   &btf.Void{},
		Value: &btf.Datasec{Name: ".rodata", Size: size,
			Vars: []btf.VarSecinfo{{Type: typeOf(size), Size: size}}},
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: value}},
	}, nil
}

// Bind binds a map with the owner to each program. It lives as long
// as they do, and so needs no pin.
func Bind(programs []*ebpf.Program, o Owner) error {
	spec, err := asMap(o)
	if err != nil {
		return err
	}
	m, err := plain.Of(ebpf.NewMap(spec))
	if err != nil {
		return fmt.Errorf("create owner map: %w", err)
	}
	var errs []error
	for _, p := range programs {
		errs = append(errs, plain.Error(p.BindMap(m)))
	}
	if err := errors.Join(append(errs, m.Close())...); err != nil {
		return fmt.Errorf("bind owner map: %w", err)
	}
	return nil
}

// typeOf is the variable that holds an owner of so many bytes.
func typeOf(size uint32) *btf.Var {
	char := &btf.Int{Name: "char", Size: 1, Encoding: btf.Char}
	return &btf.Var{Name: Variable, Linkage: btf.GlobalVar,
		Type: &btf.Array{Index: &btf.Int{Name: "int", Size: 4}, Type: char, Nelems: size}}
}

// AddToConstants appends the owner to the object's own constants: bpftool reads
// the first .rodata of a program and no other, so a bound map is seen only
// where the program has none.
func AddToConstants(spec *ebpf.CollectionSpec, o Owner) error {
	ms := spec.Maps[".rodata"]
	if ms == nil || len(ms.Contents) != 1 {
		return nil
	}
	section, typed := ms.Value.(*btf.Datasec)
	data, plain := ms.Contents[0].Value.([]byte)
	if !typed || !plain || int(ms.ValueSize) != len(data) {
		return nil
	}
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("write owner: %w", err)
	}
	size := uint32(len(text) + 1)
	grown := *section
	grown.Vars = append(slices.Clone(section.Vars), btf.VarSecinfo{Type: typeOf(size), Offset: ms.ValueSize, Size: size})
	grown.Size = ms.ValueSize + size
	ms.Value, ms.ValueSize = &grown, grown.Size
	ms.Contents = []ebpf.MapKV{{Key: uint32(0), Value: append(append(slices.Clone(data), text...), 0)}}
	return nil
}

// maxOwners bounds how many bytes of names a chain says.
const maxOwners = 1024

// OfChain is the map that names the applications of a chain's members.
func OfChain(members []plan.Member) (*ebpf.MapSpec, error) {
	var apps []string
	for _, m := range members {
		if name := m.Identity.String(); !slices.Contains(apps, name) {
			apps = append(apps, name)
		}
	}
	names := apps[0]
	for i, name := range apps[1:] {
		if len(names)+len(name) > maxOwners {
			names += fmt.Sprintf(" and %d more", len(apps)-i-1)
			break
		}
		names += "," + name
	}
	return asMap(Owner{App: names})
}
