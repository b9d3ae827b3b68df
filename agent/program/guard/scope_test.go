package guard

import (
	"errors"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
)

// newScope makes an empty scope.
func newScope(t testing.TB) (Scope, map[string]*ebpf.Map) {
	t.Helper()
	all := newMaps(t, "s")
	return Scopes(all)["s"], all
}

func TestAScopeHoldsTheMembersThatWereSetLast(t *testing.T) {
	s, all := newScope(t)
	levels := all[levelsName("s")]
	for _, step := range []struct {
		sentence string
		members  []Member
		ids      []uint64
		levels   [MaxLevels]uint32
		stays    []uint64
	}{
		{"two at one level", []Member{{7, 3}, {5, 3}}, []uint64{5, 7}, [MaxLevels]uint32{3}, nil},
		{"again", []Member{{5, 3}, {7, 3}}, []uint64{5, 7}, [MaxLevels]uint32{3}, nil},
		{"one leaves, and one comes at another level", []Member{{7, 3}, {9, 2}}, []uint64{7, 9}, [MaxLevels]uint32{3, 2}, nil},
		{"as many levels as there can be", []Member{{7, 9}, {9, 2}, {10, 4}, {11, 3}}, []uint64{7, 9, 10, 11}, [MaxLevels]uint32{3, 2, 4, 9}, nil},
		{"some stay beside others, with the levels", []Member{{12, 4}}, []uint64{7, 9, 12}, [MaxLevels]uint32{3, 2, 4, 9}, []uint64{7, 9, 13}},
		{"what stayed leaves", []Member{{12, 4}}, []uint64{12}, [MaxLevels]uint32{0, 0, 4}, nil},
		{"none", nil, nil, [MaxLevels]uint32{}, nil},
	} {
		if err := s.SetBeside(step.members, func(id uint64) bool { return slices.Contains(step.stays, id) }); err != nil {
			t.Fatalf("%s: %v", step.sentence, err)
		}
		ids, err := s.Cgroups()
		if err != nil {
			t.Fatal(err)
		}
		var value struct {
			At     [MaxLevels]uint32
			Filter [valueBytes - filterAt]byte
		}
		if err := levels.Lookup(uint32(0), &value); err != nil {
			t.Fatal(err)
		}
		at, set := value.At, 0
		for _, b := range value.Filter {
			set += bits.OnesCount8(b)
		}
		if set != len(step.ids) {
			t.Errorf("%s: the filter has %d bits for %d cgroups", step.sentence, set, len(step.ids))
		}
		if diff := cmp.Diff(step.ids, ids) + cmp.Diff(step.levels, at); diff != "" {
			t.Errorf("%s: %s", step.sentence, diff)
		}
	}
}

func TestMembersThatCannotBeAddNoneAndThoseThatLeftAreRemoved(t *testing.T) {
	s, _ := newScope(t)
	lots := []Member{{5, 3}}
	for id := range uint64(MaxMembers) {
		lots = append(lots, Member{id + 100, 3})
	}
	for sentence, c := range map[string]struct {
		members []Member
		want    string
	}{
		"five levels":           {[]Member{{5, 3}, {8, 4}, {9, 5}, {10, 6}, {11, 1}}, "lie at levels [1 3 4 5 6], and a scope has at most 4"},
		"the root":              {[]Member{{5, 3}, {1, 0}}, "cgroup 1 at level 0"},
		"no cgroup":             {[]Member{{5, 3}, {0, 2}}, "cgroup 0 at level 2"},
		"more than a map holds": {lots, "4097 cgroups are more than 4096"},
	} {
		t.Run(sentence, func(t *testing.T) {
			if err := s.Set([]Member{{5, 3}, {6, 3}}); err != nil {
				t.Fatal(err)
			}
			err := s.Set(c.members)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Set = %v, want %q", err, c.want)
			}
			if levels := new(LevelsError); sentence == "five levels" && !errors.As(err, &levels) {
				t.Errorf("%v has no type", err)
			}
			if ids, err := s.Cgroups(); err != nil || !slices.Equal(ids, []uint64{5}) {
				t.Errorf("the scope holds %v, %v", ids, err)
			}
		})
	}
	if err := s.Set(lots[1:]); err != nil {
		t.Errorf("as many as a map holds: %v", err)
	}
	if ids, err := s.Cgroups(); err != nil || len(slices.Compact(ids)) != MaxMembers || ids[0] != 100 || ids[MaxMembers-1] != MaxMembers+99 {
		t.Errorf("of as many as a map holds, %d are read: %v", len(ids), err)
	}
}

func TestScopesAreFoundByTheirMaps(t *testing.T) {
	all := newMaps(t, "a/b")
	other := newMaps(t, "c")
	all["counts"], all[cgroupsName("half")] = other[cgroupsName("c")], other[cgroupsName("c")]
	found := Scopes(all)
	if _, ok := found["a/b"]; !ok || len(found) != 1 {
		t.Errorf("found %v", found)
	}
	for name, want := range map[string]bool{"counts": false, "skep.scope": false, cgroupsName("x"): true, levelsName(""): true} {
		if IsMap(name) != want {
			t.Errorf("IsMap(%q) = %v", name, !want)
		}
	}
}
