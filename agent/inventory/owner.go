package inventory

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/program/owner"
)

// ownerMaxSize bounds a map that may name an owner, so that no unmanaged object makes this
// process read much.
const ownerMaxSize = 4096

// ownerReader reads each map once, however many programs share it.
type ownerReader struct {
	known map[ebpf.MapID]*owner.Owner
}

// of is the owner named in one of a program's maps, or nil.
func (r ownerReader) of(maps []uint32) *owner.Owner {
	for _, id := range maps {
		o, ok := r.known[ebpf.MapID(id)]
		if !ok {
			o = readOwner(ebpf.MapID(id))
			r.known[ebpf.MapID(id)] = o
		}
		if o != nil {
			return o
		}
	}
	return nil
}

// readOwner returns nil for a map that names no owner, and for one that cannot
// be read: the label is no more than that.
func readOwner(id ebpf.MapID) *owner.Owner {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return nil
	}
	defer m.Close()
	if m.Type() != ebpf.Array || m.KeySize() != 4 || m.MaxEntries() != 1 || m.ValueSize() > ownerMaxSize {
		return nil
	}
	at, ok := ownerOffset(m)
	if !ok {
		return nil
	}
	value, err := m.LookupBytes(uint32(0))
	if err != nil || at >= uint32(len(value)) {
		return nil
	}
	return owner.Parse(value[at:])
}

// ownerOffset finds the variable in a data section.
func ownerOffset(m *ebpf.Map) (uint32, bool) {
	handle, err := m.Handle()
	if err != nil {
		return 0, false
	}
	defer handle.Close()
	spec, err := handle.Spec(nil)
	if err != nil {
		return 0, false
	}
	var section *btf.Datasec
	for t, err := range spec.All() {
		if err != nil {
			return 0, false
		}
		if s, ok := t.(*btf.Datasec); ok {
			section = s
			if at, ok := variable(section, owner.Variable); ok {
				return at, true
			}
		}
	}
	return 0, false
}

func variable(section *btf.Datasec, name string) (uint32, bool) {
	for _, v := range section.Vars {
		if v.Type.TypeName() == name {
			return v.Offset, true
		}
	}
	return 0, false
}
