package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/plan"
)

// Owner is what Skep writes into the kernel beside each program, so that
// others can tell whose it is: bpftool prog show prints it.
type Owner struct {
	// App is the application's identity; for a chain those of all members.
	App string `json:"app"`
	// UID and Revision name what was loaded. A chain has neither.
	UID      string `json:"uid,omitempty"`
	Revision string `json:"revision,omitempty"`
}

// ownerVariable is printed by bpftool without its first part, as "skep"
// (bpf_metadata_ of tools/bpf/bpftool/prog.c).
const ownerVariable = "bpf_metadata_skep"

func ownerOf(p *Prepared) Owner {
	return Owner{App: p.Application.String(), UID: p.UID, Revision: p.Revision}
}

// bindOwner binds a frozen map with the owner to each program. It lives as long
// as they do, and so needs no pin.
func bindOwner(programs []*ebpf.Program, o Owner) error {
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("write owner: %w", err)
	}
	value := append(slices.Clone(text), 0)
	size := uint32(len(value))
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "skep.rodata", Type: ebpf.Array, KeySize: 4, ValueSize: size, MaxEntries: 1,
		Key: &btf.Void{},
		Value: &btf.Datasec{Name: ".rodata", Size: size,
			Vars: []btf.VarSecinfo{{Type: ownerType(size), Size: size}}},
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: value}},
	})
	if err != nil {
		return fmt.Errorf("create owner map: %w", err)
	}
	errs := []error{m.Freeze()}
	for _, p := range programs {
		errs = append(errs, p.BindMap(m))
	}
	if err := errors.Join(append(errs, m.Close())...); err != nil {
		return fmt.Errorf("bind owner map: %w", err)
	}
	return nil
}

// ownerType is the variable that holds an owner of so many bytes.
func ownerType(size uint32) *btf.Var {
	char := &btf.Int{Name: "char", Size: 1, Encoding: btf.Char}
	return &btf.Var{Name: ownerVariable, Linkage: btf.GlobalVar,
		Type: &btf.Array{Index: &btf.Int{Name: "int", Size: 4}, Type: char, Nelems: size}}
}

// ownConstants appends the owner to the object's own constants: bpftool reads
// the first .rodata of a program and no other, so a bound map is seen only
// where the program has none.
func ownConstants(spec *ebpf.CollectionSpec, o Owner) error {
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
	grown.Vars = append(slices.Clone(section.Vars), btf.VarSecinfo{Type: ownerType(size), Offset: ms.ValueSize, Size: size})
	grown.Size = ms.ValueSize + size
	ms.Value, ms.ValueSize = &grown, grown.Size
	ms.Contents = []ebpf.MapKV{{Key: uint32(0), Value: append(append(slices.Clone(data), text...), 0)}}
	return nil
}

// BindChainOwner binds the identities of a chain's members to its program.
func BindChainOwner(program *ebpf.Program, members []plan.Member) error {
	var apps []string
	for _, m := range members {
		if name := m.Identity.String(); !slices.Contains(apps, name) {
			apps = append(apps, name)
		}
	}
	return bindOwner([]*ebpf.Program{program}, Owner{App: strings.Join(apps, ",")})
}
