package values

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/reach"
	"github.com/skep-dev/skep/hook"
)

const (
	// maxContents bounds the contents that a definition gives all maps, in bytes as the
	// kernel takes them: of a large value that is mostly zero, little is written.
	maxContents = 4 << 20
	// maxFieldErrors bounds what is said of one map.
	maxFieldErrors = 8
)

// Flags of map_flags, from include/uapi/linux/bpf.h.
const (
	flagNoCommonLRU  = 1 << 1
	flagReadOnly     = 1 << 3
	flagInnerAnySize = 1 << 12
)

// FieldError is a field of the definition that does not fit the object.
type FieldError struct {
	// Field is its path below spec, such as maps.ports.contents[3].key.
	Field string
	// Reason says what is wrong, Fix what would fix it.
	Reason, Fix string
}

// Error implements error.
func (e *FieldError) Error() string { return fmt.Sprintf("%s: %s; %s", e.Field, e.Reason, e.Fix) }

// Resize gives a map of the object the sizes that a definition says.
func Resize(ms *ebpf.MapSpec, m v1alpha1.Map) {
	if m.MaxEntries != nil {
		ms.MaxEntries = *m.MaxEntries
	}
	if m.ValueSize != nil {
		ms.ValueSize = *m.ValueSize
	}
}

// Contents puts the initial contents that a definition gives maps into the object,
// whose maps have their sizes already. An entry takes the place of one that the object
// itself has under the key. The programs are those that the definition lists: of the others,
// only those that prog arrays name are loaded. It returns what does not fit, by field; the
// object is then not to be used.
func Contents(spec *ebpf.CollectionSpec, maps map[string]v1alpha1.Map, programs []v1alpha1.Program) []*FieldError {
	names := make([]string, 0, len(maps))
	for name, m := range maps {
		if len(m.Contents) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var all []*FieldError
	left := uint64(maxContents)
	for _, name := range names {
		f := filler{spec: spec, name: name, ms: spec.Maps[name], field: "maps." + name + ".contents"}
		if f.ms == nil || strings.HasPrefix(name, ".") {
			f.fail("", "name a map of the object that is no data section", "the object has no such map")
		} else {
			f.fill(maps[name].Contents, &left)
		}
		all = append(all, f.errors...)
	}
	return append(all, wrongTypes(spec, names, maps, loadedTypes(spec, maps, programs))...)
}

// filler fills one map.
type filler struct {
	spec *ebpf.CollectionSpec
	// name and ms are the map's, field is its path in the definition.
	name   string
	ms     *ebpf.MapSpec
	field  string
	errors []*FieldError
}

// fail records what is wrong at a place below the contents.
func (f *filler) fail(place, fix, format string, args ...any) {
	f.errors = append(f.errors, &FieldError{Field: f.field + place, Reason: fmt.Sprintf(format, args...), Fix: fix})
}

// fill encodes the entries, as far as left has bytes for them.
func (f *filler) fill(entries []v1alpha1.MapEntry, left *uint64) {
	ms := f.ms
	if why := noContents(ms); why != "" {
		f.fail("", "remove contents", "a map of type %s takes none: %s", ms.Type, why)
		return
	}
	if ms.MaxEntries == 0 {
		// Without its size it is denied anyway.
		return
	}
	size := uint64(ms.KeySize) + uint64(ms.ValueSize)
	if uint64(len(entries)) > *left/max(size, 1) {
		f.fail("", "list fewer entries", "%d entries of %d bytes are listed, and all contents of an application may have %d bytes", len(entries), size, maxContents)
		return
	}
	*left -= uint64(len(entries)) * size
	own := slices.Clone(ms.Contents)
	var given []ebpf.MapKV
	seen := map[string]int{}
	for i, entry := range entries {
		if len(f.errors) >= maxFieldErrors {
			return
		}
		place := fmt.Sprintf("[%d]", i)
		key, ok := f.key(place, entry)
		if !ok {
			continue
		}
		id := string(f.identity(key))
		if before, twice := seen[id]; twice {
			f.fail(place+".key", "give each key once", "it is the key of contents[%d] again", before)
			continue
		}
		seen[id] = i
		value, ok := f.value(place, entry)
		if !ok {
			continue
		}
		own = slices.DeleteFunc(own, func(kv ebpf.MapKV) bool { return f.isKey(kv.Key, key) })
		given = append(given, ebpf.MapKV{Key: key, Value: value})
	}
	if n := len(own) + len(given); uint64(n) > uint64(ms.MaxEntries) {
		f.fail("", "raise maxEntries, or list fewer entries", "the map holds %d entries, and would have %d with those of the object", ms.MaxEntries, n)
	}
	ms.Contents = slices.Concat(own, given)
}

// noContents says why a map takes no contents; empty where it does.
func noContents(ms *ebpf.MapSpec) string {
	switch ms.Type {
	case ebpf.Array, ebpf.PerCPUArray, ebpf.Hash, ebpf.PerCPUHash, ebpf.LRUHash, ebpf.LRUCPUHash, ebpf.LPMTrie,
		ebpf.ProgramArray, ebpf.ArrayOfMaps, ebpf.HashOfMaps:
	case ebpf.Queue, ebpf.Stack, ebpf.BloomFilter:
		return "its entries have no keys"
	case ebpf.RingBuf, ebpf.UserRingbuf, ebpf.PerfEventArray:
		return "it passes events on, and has no entries"
	case ebpf.SkStorage, ebpf.InodeStorage, ebpf.TaskStorage, ebpf.CgroupStorage, ebpf.CGroupStorage, ebpf.PerCPUCGroupStorage:
		return "its values belong to sockets, inodes, tasks or cgroups, which come and go"
	case ebpf.SockMap, ebpf.SockHash, ebpf.XSKMap, ebpf.ReusePortSockArray, ebpf.DevMap, ebpf.DevMapHash, ebpf.CPUMap, ebpf.CGroupArray:
		return "its values are sockets, interfaces, CPUs or cgroups, which differ from node to node"
	default:
		return "it is filled by the kernel or by programs"
	}
	isLRU := ms.Type == ebpf.LRUHash || ms.Type == ebpf.LRUCPUHash
	switch {
	case ms.Flags&flagReadOnly != 0:
		return "its flag BPF_F_RDONLY lets programs alone write to it"
	case isLRU && ms.Flags&flagNoCommonLRU != 0:
		return "its flag BPF_F_NO_COMMON_LRU gives the CPU that writes them a part of the map, and the oldest would be gone"
	case ms.InnerMap == nil && (ms.Type == ebpf.ArrayOfMaps || ms.Type == ebpf.HashOfMaps):
		return "the object does not say what maps it holds"
	}
	return ""
}

// isArray reports whether the keys of the map are its indexes.
func isArray(ms *ebpf.MapSpec) bool {
	switch ms.Type {
	case ebpf.Array, ebpf.PerCPUArray, ebpf.ProgramArray, ebpf.ArrayOfMaps:
		return true
	}
	return false
}

// key encodes the key of an entry.
func (f *filler) key(place string, entry v1alpha1.MapEntry) ([]byte, bool) {
	ms, t := f.ms, f.ms.Key
	if t == nil && isArray(ms) && ms.KeySize == 4 {
		// An index, whatever the object says of it.
		t = &btf.Int{Name: "__u32", Size: 4}
	}
	key, ok := f.encode(place+".key", t, ms.KeySize, entry.Key.Raw)
	if !ok {
		return nil, false
	}
	order := f.spec.ByteOrder
	switch {
	case isArray(ms) && len(key) == 4 && order.Uint32(key) >= ms.MaxEntries:
		f.fail(place+".key", fmt.Sprintf("use 0 to %d", ms.MaxEntries-1), "index %d is beyond the end of the map", order.Uint32(key))
		return nil, false
	case ms.Type == ebpf.LPMTrie && (len(key) <= 4 || uint64(order.Uint32(key)) > uint64(len(key)-4)*8):
		f.fail(place+".key", fmt.Sprintf("use a prefix of 0 to %d bits", max(0, len(key)-4)*8), "the prefix is longer than the key")
		return nil, false
	}
	return key, true
}

// identity is the part of a key by which the kernel tells entries apart: in a trie
// those bits that the prefix covers.
func (f *filler) identity(key []byte) []byte {
	if f.ms.Type != ebpf.LPMTrie {
		return key
	}
	id, bits := bytes.Clone(key), int(f.spec.ByteOrder.Uint32(key))
	for i := range id[4:] {
		covered := min(max(bits-i*8, 0), 8)
		id[4+i] &= byte(0xff << (8 - covered))
	}
	return id
}

// isKey reports whether the object's own entry has the key; the library numbers them.
func (f *filler) isKey(own any, key []byte) bool {
	n, ok := own.(uint32)
	return ok && len(key) == 4 && f.spec.ByteOrder.Uint32(key) == n
}

// value encodes the value of an entry. Programs and maps stay names, which loading the
// object resolves.
func (f *filler) value(place string, entry v1alpha1.MapEntry) (any, bool) {
	place += ".value"
	switch f.ms.Type {
	case ebpf.ProgramArray:
		return f.program(place, entry.Value.Raw)
	case ebpf.ArrayOfMaps, ebpf.HashOfMaps:
		return f.innerMap(place, entry.Value.Raw)
	}
	value, ok := f.encode(place, f.ms.Value, f.ms.ValueSize, entry.Value.Raw)
	return value, ok
}

// encode makes the bytes of a key or a value.
func (f *filler) encode(place string, t btf.Type, size uint32, raw []byte) ([]byte, bool) {
	what := "the hex digits of its " + fmt.Sprint(size) + " bytes"
	if len(raw) == 0 {
		raw = []byte("null")
	}
	var encoded []byte
	var err error
	if t == nil {
		encoded, err = hexBytes(size, raw)
	} else {
		what = describe(t)
		switch u := btf.UnderlyingType(t).(type) {
		case *btf.Struct:
			what += " with the fields " + fieldNames(u.Members)
		case *btf.Union:
			what += " with one of the fields " + fieldNames(u.Members)
		}
		encoded, err = Encode(t, f.spec.ByteOrder, raw)
	}
	if err == nil && len(encoded) != int(size) {
		err = fmt.Errorf("its BTF says %d bytes and the map %d; compile the object anew", len(encoded), size)
	}
	if err != nil {
		f.fail(place, "write "+what, "%v", err)
		return nil, false
	}
	return encoded, true
}

// hexBytes reads the bytes of a key or value that the object gives no type.
func hexBytes(size uint32, raw []byte) ([]byte, error) {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, errors.New("the object has no BTF for it, and it is no string")
	}
	decoded, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		return nil, fmt.Errorf("the object has no BTF for it, and %s is not hex digits, two for each byte", show(text))
	}
	if len(decoded) != int(size) {
		return nil, fmt.Errorf("the object has no BTF for it, and %s has %d bytes, not %d", show(text), len(decoded), size)
	}
	return decoded, nil
}

// program is the name of a program that a prog array can hold.
func (f *filler) program(place string, raw []byte) (any, bool) {
	fix := "write the name of a program: " + keys(f.spec.Programs)
	var name string
	if json.Unmarshal(raw, &name) != nil || f.spec.Programs[name] == nil {
		f.fail(place, fix, "the object has no program %s", show(json.RawMessage(raw)))
		return nil, false
	}
	return name, true
}

// Loaded returns which programs and maps of an object a definition has loaded. The maps have the contents of the
// definition already.
func Loaded(spec *ebpf.CollectionSpec, programs []v1alpha1.Program, maps map[string]v1alpha1.Map) reach.Set {
	listed := make([]string, 0, len(programs))
	for _, p := range programs {
		listed = append(listed, p.Name)
	}
	return reach.Of(spec, listed, sorted(v1alpha1.WithoutReaders(maps)))
}

// loadedTypes are the types of the programs that are loaded: of those that the definition lists, for
// their hooks, and of those that prog arrays name.
func loadedTypes(spec *ebpf.CollectionSpec, maps map[string]v1alpha1.Map, programs []v1alpha1.Program) map[string]ebpf.ProgramType {
	types := map[string]ebpf.ProgramType{}
	for name := range Loaded(spec, programs, maps).Programs {
		types[name] = spec.Programs[name].Type
	}
	for _, p := range programs {
		if spec.Programs[p.Name] == nil {
			continue
		}
		for _, a := range p.Attach {
			if h, ok := hook.Lookup(a.Hook); ok && types[p.Name] == ebpf.UnspecifiedProgram {
				types[p.Name] = h.ProgramType
			}
		}
	}
	return types
}

// wrongTypes returns the entries of prog arrays that are of another type than the programs that are loaded
// and tail call through the map: the kernel takes the type of the first program that uses it
// (bpf_prog_map_compatible of kernel/bpf/core.c).
func wrongTypes(spec *ebpf.CollectionSpec, names []string, maps map[string]v1alpha1.Map, loaded map[string]ebpf.ProgramType) []*FieldError {
	var all []*FieldError
	for _, name := range names {
		f := filler{spec: spec, name: name, ms: spec.Maps[name], field: "maps." + name + ".contents"}
		for i, entry := range maps[name].Contents {
			var target string
			if f.ms == nil || f.ms.Type != ebpf.ProgramArray || json.Unmarshal(entry.Value.Raw, &target) != nil || len(f.errors) >= maxFieldErrors {
				continue
			}
			f.compare(fmt.Sprintf("[%d].value", i), target, loaded)
		}
		all = append(all, f.errors...)
	}
	return all
}

// compare denies a program of a prog array that is of another type than one that tail calls through it.
func (f *filler) compare(place, target string, loaded map[string]ebpf.ProgramType) {
	is := loaded[target]
	for _, caller := range sorted(loaded) {
		if other := loaded[caller]; other != is && other != ebpf.UnspecifiedProgram && is != ebpf.UnspecifiedProgram && uses(f.spec.Programs[caller], f.name) {
			f.fail(place, "name a program of that type", "program %s is of type %s, and %s, which tail calls through the map, of type %s", target, is, caller, other)
			return
		}
	}
}

// uses reports whether a program, or a function that it reaches, refers to the map.
func uses(p *ebpf.ProgramSpec, name string) bool {
	for i := range p.Instructions {
		if ins := &p.Instructions[i]; ins.IsLoadFromMap() && ins.Reference() == name {
			return true
		}
	}
	return false
}

// innerMap is the name of a map that a map of maps can hold.
func (f *filler) innerMap(place string, raw []byte) (any, bool) {
	var name string
	if json.Unmarshal(raw, &name) != nil || f.spec.Maps[name] == nil || strings.HasPrefix(name, ".") {
		f.fail(place, "write the name of a map of the object", "the object has no map %s", show(json.RawMessage(raw)))
		return nil, false
	}
	if why := unlike(f.spec.Maps[name], f.ms.InnerMap); why != "" {
		f.fail(place, "name a map that is declared as the maps in it are", "map %s %s", name, why)
		return nil, false
	}
	return name, true
}

// unlike says where a map differs from the template of a map of maps, as the kernel
// compares them (bpf_map_meta_equal); empty where it does not.
func unlike(ms, template *ebpf.MapSpec) string {
	for _, c := range []struct {
		what       string
		has, wants any
	}{
		{"type", ms.Type, template.Type},
		{"key size", ms.KeySize, template.KeySize},
		{"value size", ms.ValueSize, template.ValueSize},
		{"flags", ms.Flags, template.Flags},
	} {
		if c.has != c.wants {
			return fmt.Sprintf("has %s %v, and the maps in it have %v", c.what, c.has, c.wants)
		}
	}
	if ms.MaxEntries != template.MaxEntries && ms.Type == ebpf.Array && ms.Flags&flagInnerAnySize == 0 {
		return fmt.Sprintf("has %d entries, and the maps in it have %d", ms.MaxEntries, template.MaxEntries)
	}
	return ""
}

// PerCPU is the map with the value of each of its contents for every CPU, where it is a
// per-CPU map: there is one value until it is known how many CPUs there are.
func PerCPU(ms *ebpf.MapSpec, cpus int) *ebpf.MapSpec {
	isPerCPU := ms.Type == ebpf.PerCPUArray || ms.Type == ebpf.PerCPUHash || ms.Type == ebpf.LRUCPUHash
	if !isPerCPU || len(ms.Contents) == 0 {
		return ms
	}
	ms = ms.Copy()
	for i, kv := range ms.Contents {
		if value, one := kv.Value.([]byte); one {
			ms.Contents[i].Value = slices.Repeat([][]byte{value}, cpus)
		}
	}
	return ms
}

func keys[V any](m map[string]V) string { return strings.Join(sorted(m), ", ") }

func sorted[V any](m map[string]V) []string {
	list := make([]string, 0, len(m))
	for name := range m {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}
