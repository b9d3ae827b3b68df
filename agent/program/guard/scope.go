package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/plain"
)

const (
	// MaxMembers is how many cgroups a scope can have: the pods of a node, or their
	// containers.
	MaxMembers = 4096
	// MaxLevels is at how many different depths its cgroups can lie. Each costs a program
	// a call of a helper for a task that does not match.
	MaxLevels = 4
)

// Prefix begins the names of the maps of scopes, which no map of an object may have.
const Prefix = "skep.scope/"

const (
	cgroupsSuffix   = "/cgroups"
	levelsSuffix    = "/levels"
	outsidersSuffix = "/outsiders"
)

// The value of the map of levels: the levels, of which 0 is none, and a filter. The
// filter has a bit set for each cgroup of the scope, by the upper bits of the product of its
// id and a multiplier (Knuth, The Art of Computer Programming 6.4). It spares a task whose
// bit is not set the look-up, and decides nothing else.
const (
	levelBytes  = 4
	filterAt    = levelBytes * MaxLevels
	filterBits  = 12
	filterShift = 64 - filterBits
	valueBytes  = filterAt + 1<<filterBits/8
	// multiplier is 2^64 divided by the golden ratio, as the 64-bit load takes it.
	multiplier = -0x61c8864680b583eb
)

// bit is the one of a cgroup in the filter.
func bit(id uint64) (at int, mask byte) {
	const factor = 1<<64 + multiplier
	n := id * factor >> filterShift
	return filterAt + int(n/8), 1 << (n % 8)
}

func cgroupsName(scope string) string { return Prefix + scope + cgroupsSuffix }

func levelsName(scope string) string { return Prefix + scope + levelsSuffix }

func outsidersName(scope string) string { return Prefix + scope + outsidersSuffix }

// IsMap reports whether the name is one of a map of a scope.
func IsMap(name string) bool { return strings.HasPrefix(name, Prefix) }

// Maps are the maps of a scope by their names in a collection: the set of the ids of its
// cgroups, and the levels at which they lie. Programs read these and cannot write them.
// In a third, guards write which cgroups are not of the scope; it decides of no task that it is.
// All are empty at first, so that a guarded program runs for no task.
func Maps(scope string) map[string]*ebpf.MapSpec {
	return map[string]*ebpf.MapSpec{
		// Preallocated, since kernels before 6.1 warn of other hashes in tracing programs.
		cgroupsName(scope):   {Name: "skep_cgroups", Type: ebpf.Hash, KeySize: 8, ValueSize: 1, MaxEntries: MaxMembers, Flags: unix.BPF_F_RDONLY_PROG},
		levelsName(scope):    {Name: "skep_levels", Type: ebpf.Array, KeySize: 4, ValueSize: valueBytes, MaxEntries: 1, Flags: unix.BPF_F_RDONLY_PROG},
		outsidersName(scope): {Name: "skep_outsiders", Type: ebpf.Array, KeySize: 4, ValueSize: outsidersBytes, MaxEntries: 1},
	}
}

// Member is a cgroup of a scope. All tasks in it and below it match.
type Member struct {
	// CgroupID is the kernel's id of the cgroup: the inode of its folder in cgroup2.
	CgroupID uint64
	// Level is how deep it lies below the root of cgroup2, which has level 0.
	Level int
}

// Scope is the contents of a scope in the kernel. It does not own its maps.
type Scope struct{ cgroups, levels, outsiders *ebpf.Map }

// Scopes finds the scopes among maps by their names in a collection. One that lacks a map
// is left out; that of outsiders may lack: programs that an older agent loaded have none.
func Scopes(all map[string]*ebpf.Map) map[string]Scope {
	found := map[string]Scope{}
	for name, cgroups := range all {
		scope, ok := strings.CutSuffix(strings.TrimPrefix(name, Prefix), cgroupsSuffix)
		if levels := all[levelsName(scope)]; ok && IsMap(name) && levels != nil {
			found[scope] = Scope{cgroups, levels, all[outsidersName(scope)]}
		}
	}
	return found
}

// LevelsError says that the cgroups of a scope lie at more levels than MaxLevels.
type LevelsError struct{ Levels []int }

// Error implements error.
func (e *LevelsError) Error() string {
	return fmt.Sprintf("set members of scope: their cgroups lie at levels %v, and a scope has at most %d levels; choose fewer pods, or pods of fewer QoS classes",
		e.Levels, MaxLevels)
}

// Set makes the members those of the scope. Only one caller may set a scope at a time.
//
// A task matches by the id of a cgroup alone: a level says where to look, the filter whether
// to look, and a wrong one finds nothing. So no order of the writes lets in a task that is
// neither of the former members nor of the new ones, and a crash between them leaves some
// tasks out until Set is called again. A task of a cgroup that stays matches all the time. A run of a program that began before goes on.
//
// Cgroups that left are removed first, even where the rest is an error: of members that are
// too many or not valid none is added.
func (s Scope) Set(members []Member) error { return s.SetBeside(members, nil) }

// SetBeside is Set, and has those that are members stay beside the others of which stays says so; nil says so of none.
func (s Scope) SetBeside(members []Member, stays func(cgroup uint64) bool) error {
	wanted, levels := map[uint64]bool{}, map[int]bool{}
	for _, m := range members {
		wanted[m.CgroupID], levels[m.Level] = true, true
	}
	has, err := s.Cgroups()
	if err != nil {
		return err
	}
	var stay []uint64
	for _, id := range has {
		if wanted[id] {
			delete(wanted, id)
			continue
		}
		if stays != nil && stays(id) {
			stay = append(stay, id)
			continue
		}
		if err := plain.Error(s.cgroups.Delete(id)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove cgroup %d from scope: %w", id, err)
		}
	}
	if len(stay) > 0 {
		// The map does not say at which levels they lie: all stay.
		if err := s.addLevels(levels); err != nil {
			return err
		}
	}
	if err := check(members, levels); err != nil {
		return err
	}
	for _, id := range stay {
		members = append(slices.Clip(members), Member{CgroupID: id})
	}
	return s.add(slices.Sorted(maps.Keys(wanted)), slices.Sorted(maps.Keys(levels)), members)
}

// addLevels adds the levels at which guards look now.
func (s Scope) addLevels(levels map[int]bool) error {
	has, err := plain.Of(s.levels.LookupBytes(uint32(0)))
	if err != nil {
		return fmt.Errorf("read levels of scope: %w", err)
	}
	for i := range MaxLevels {
		if level := int(binary.NativeEndian.Uint32(has[levelBytes*i:])); level > 0 {
			levels[level] = true
		}
	}
	return nil
}

// add adds the ids of cgroups and has the levels those of all members. What guards know of
// outsiders begins anew if something changes.
func (s Scope) add(ids []uint64, levels []int, members []Member) error {
	has, err := plain.Of(s.levels.LookupBytes(uint32(0)))
	if err != nil {
		return fmt.Errorf("read levels of scope: %w", err)
	}
	knows, err := s.remembers()
	if err != nil {
		return err
	}
	value, remembers := levelsOf(has, levels, members), len(levels) >= leastLevels && s.outsiders != nil
	if len(ids) == 0 && slices.Equal(has, value) && knows == remembers {
		return nil
	}
	if err := s.setEpoch(false); err != nil {
		return err
	}
	for _, id := range ids {
		if err := plain.Error(s.cgroups.Put(id, uint8(1))); err != nil {
			return fmt.Errorf("add cgroup %d to scope: %w", id, err)
		}
	}
	if err := plain.Error(s.levels.Put(uint32(0), value)); err != nil {
		return fmt.Errorf("set levels of scope: %w", err)
	}
	return s.setEpoch(remembers)
}

// check rejects members that a scope cannot have.
func check(members []Member, levels map[int]bool) error {
	ids := map[uint64]bool{}
	for _, m := range members {
		ids[m.CgroupID] = true
		// The root is every task of the node, and 0 is what the kernel says of no cgroup.
		if m.CgroupID == 0 || m.Level < 1 {
			return fmt.Errorf("set members of scope: cgroup %d at level %d is none below the root of cgroup2", m.CgroupID, m.Level)
		}
	}
	if len(ids) > MaxMembers {
		return fmt.Errorf("set members of scope: %d cgroups are more than %d; choose fewer pods", len(ids), MaxMembers)
	}
	if len(levels) > MaxLevels {
		return &LevelsError{slices.Sorted(maps.Keys(levels))}
	}
	return nil
}

// levelsOf is the value of the map of levels that follows the one it has. A level that stays
// keeps its place: the kernel writes the value while programs read it.
func levelsOf(has []byte, levels []int, members []Member) []byte {
	value := make([]byte, valueBytes)
	var free [][]byte
	for i := range MaxLevels {
		at := value[levelBytes*i:]
		level := int(binary.NativeEndian.Uint32(has[levelBytes*i:]))
		if !slices.Contains(levels, level) {
			free = append(free, at)
			continue
		}
		binary.NativeEndian.PutUint32(at, uint32(level))
		levels = slices.DeleteFunc(slices.Clone(levels), func(l int) bool { return l == level })
	}
	for i, level := range levels {
		binary.NativeEndian.PutUint32(free[i], uint32(level))
	}
	for _, m := range members {
		at, mask := bit(m.CgroupID)
		value[at] |= mask
	}
	return value
}

// membersAtOnce is how many members one call reads: a call for each took 1 ms of a reconcile with 250 pods.
const membersAtOnce = 1024

// Cgroups are the ids of the members, sorted.
func (s Scope) Cgroups() ([]uint64, error) {
	var ids []uint64
	var cursor ebpf.MapBatchCursor
	for err := error(nil); err == nil; {
		var n int
		some, values := make([]uint64, membersAtOnce), make([]uint8, membersAtOnce)
		n, err = s.cgroups.BatchLookup(&cursor, some, values, nil)
		if err = plain.Error(err); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("read cgroups of scope: %w", err)
		}
		ids = append(ids, some[:n]...)
	}
	slices.Sort(ids)
	return ids, nil
}
