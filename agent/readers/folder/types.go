package folder

import (
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/skepmap"
)

// Types are those of a map's key and value, as BTF that has nothing else. The zero value is that of a map whose types are not known.
type Types struct {
	BTF                []byte
	KeyID, ValueID     btf.TypeID
	KeySize, ValueSize int
}

// TypesOf makes the BTF of a map's types; nil is not known.
func TypesOf(key, value btf.Type) (Types, error) {
	var t Types
	builder, err := btf.NewBuilder(nil, nil)
	for _, one := range []struct {
		of   btf.Type
		id   *btf.TypeID
		size *int
	}{{key, &t.KeyID, &t.KeySize}, {value, &t.ValueID, &t.ValueSize}} {
		if _, void := one.of.(*btf.Void); err != nil || one.of == nil || void {
			continue
		}
		if *one.size, err = btf.Sizeof(one.of); err == nil {
			*one.id, err = builder.Add(one.of)
		}
	}
	if err == nil && !builder.Empty() {
		t.BTF, err = builder.Marshal(nil, nil)
	}
	if err != nil {
		return Types{}, fmt.Errorf("write the types of a map: %w", plain.Error(err))
	}
	return t, nil
}

// Fact is what an object says of a map and the kernel does not.
type Fact struct {
	Types
	// Flags are BPF_F_RDONLY and BPF_F_WRONLY: the kernel does not keep them.
	Flags uint32
}

// FactsOf reads what an object says of some of its maps. A map whose types are unknown is reported to warn: its readers know them.
func FactsOf(object []byte, names iter.Seq[string], warn func(name string, err error)) (map[string]Fact, error) {
	read, err := objectfile.Read(object)
	if err != nil {
		return nil, err
	}
	all := map[string]Fact{}
	for name := range names {
		spec := read.Spec.Maps[name]
		if spec == nil {
			continue
		}
		one := Fact{Flags: spec.Flags & (unix.BPF_F_RDONLY | unix.BPF_F_WRONLY)}
		if one.Types, err = TypesOf(spec.Key, spec.Value); err != nil {
			warn(name, err)
		}
		all[name] = one
	}
	return all, nil
}

// describe describes the maps of pins. A map that is described, and whose pin stays, is not described anew; else its types are in their
// file before the pin is there.
func (s *state) describe(app Application, want map[string]entry, next uint64) (map[string]skepmap.MapInfo, error) {
	infos := map[string]skepmap.MapInfo{}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		e := want[name]
		if e.of.Name != name {
			continue
		}
		at, info := s.pins[name], s.listing.Maps[name]
		if at.id != e.id || info.Generation != at.generation || !s.hasTypes(info) {
			var err error
			if info, err = s.infoOf(app, e.of); err != nil {
				return nil, fmt.Errorf("describe map %s: %w", name, err)
			}
			info.Generation = next
			if at.id == e.id {
				info.Generation = at.generation
			}
		}
		info.Access, info.Group = skepmap.Access(e.Access), e.Group
		infos[name] = info
	}
	return infos, nil
}

// hasTypes reports whether the file with a map's types is there, where the listing has one.
func (s *state) hasTypes(info skepmap.MapInfo) bool {
	if info.BTF == "" {
		return true
	}
	_, err := os.Lstat(filepath.Join(s.Dir, info.BTF))
	return err == nil
}

// infoOf describes a map as it is in the kernel.
func (s *state) infoOf(app Application, m *Map) (skepmap.MapInfo, error) {
	kernel, err := plain.Of(m.Map.Info())
	if err != nil {
		return skepmap.MapInfo{}, err
	}
	info := skepmap.MapInfo{Type: kernel.Type.String(), KeySize: kernel.KeySize, ValueSize: kernel.ValueSize, MaxEntries: kernel.MaxEntries, Flags: kernel.Flags}
	if app.Types == nil {
		return info, nil
	}
	types, err := app.Types(m.Name)
	if err != nil || !types.Fit(kernel) {
		return info, err
	}
	info.BTF, info.KeyTypeID, info.ValueTypeID = skepmap.BTFFile(m.Name), uint32(types.KeyID), uint32(types.ValueID)
	return info, s.put(info.BTF, types.BTF)
}

// Fit reports whether there are types, and a map has values of them: a definition can change the size of those.
func (t Types) Fit(m *ebpf.MapInfo) bool {
	return t.BTF != nil && (t.KeyID == 0 || t.KeySize == int(m.KeySize)) && (t.ValueID == 0 || t.ValueSize == int(m.ValueSize))
}

// dropTypes removes the files of types that no map has any more.
func (s *state) dropTypes(infos map[string]skepmap.MapInfo) error {
	listed, err := os.ReadDir(s.Dir)
	if err != nil {
		return fmt.Errorf("look at a readers' folder: %w", err)
	}
	for _, one := range listed {
		name, isTypes := strings.CutSuffix(one.Name(), skepmap.BTFFile(""))
		if isTypes && infos[name].BTF == "" {
			if err := remove(filepath.Join(s.Dir, one.Name())); err != nil {
				return fmt.Errorf("remove the types of a map: %w", err)
			}
		}
	}
	return nil
}
