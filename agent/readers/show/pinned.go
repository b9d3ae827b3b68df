package show

import (
	"context"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/holders"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
)

// Pinned returns the maps of one application by its pins, as List does, and who holds none of them: it looks at nothing else
// of the kernel. A pin that is removed meanwhile is left out.
func Pinned(root, uid, application string) ([]Map, error) {
	paths, programs, err := pins.Pinned(root, uid)
	if err != nil {
		return nil, fmt.Errorf("list maps of %s: %w", application, err)
	}
	ids := []uint32{}
	for _, path := range programs {
		if p, err := ebpf.LoadPinnedProgram(path, nil); err == nil {
			if id, err := pins.ProgramID(p); err == nil {
				ids = append(ids, uint32(id))
			}
			_ = p.Close()
		}
	}
	found := map[string]Map{}
	for _, path := range paths {
		m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			continue
		}
		info, err := plain.Of(m.Info())
		_ = m.Close()
		if err != nil {
			return nil, fmt.Errorf("read map %s: %w", path, err)
		}
		id, _ := info.ID()
		name, _ := pins.MapName(path)
		found[fmt.Sprint(name, "\x00", id)] = Map{Application: application, Name: name, ID: uint32(id), Type: info.Type.String(), KeySize: info.KeySize,
			ValueSize: info.ValueSize, MaxEntries: info.MaxEntries, Pin: path, programs: ids}
	}
	return sorted(found), nil
}

// Holders fills in the processes that have a descriptor of the map, as far as they are seen from here.
func (m Map) Holders(ctx context.Context) (Map, error) {
	held, err := holders.Processes(ctx, "/proc")
	m.HeldBy = held[holders.Map(m.ID)]
	return m, err
}
