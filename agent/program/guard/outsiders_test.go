package guard

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/test/harness/tasks"
)

// elsewhere are members at two levels, of which no task is, so that outsiders are remembered.
var elsewhere = []Member{{CgroupID: 1 << 40, Level: 2}, {CgroupID: 1<<40 + 1, Level: 3}}

// remembered are the epoch of a scope, and the cgroups that it remembers, sorted.
func remembered(t testing.TB, s Scope) (uint64, []uint64) {
	t.Helper()
	value, err := s.outsiders.LookupBytes(uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	epoch := binary.NativeEndian.Uint64(value)
	var ids []uint64
	for at := outsidersAt; at < len(value); at += 8 {
		if entry := binary.NativeEndian.Uint64(value[at:]); entry != 0 {
			ids = append(ids, entry^epoch)
		}
	}
	slices.Sort(ids)
	return epoch, ids
}

func TestCgroupsThatDoNotMatchAreRememberedUntilTheScopeChanges(t *testing.T) {
	g := onGetpgid(t, licensed(ebpf.TracePoint, "Proprietary"))
	a, b := tasks.Cgroup(t, "skep-a"), tasks.Cgroup(t, "skep-b")
	inside, outside := tasks.Start(t, a), tasks.Start(t, b)
	var former uint64
	for _, step := range []struct {
		sentence string
		members  []Member
		of       []string
		inside   uint64
	}{
		{"no member", nil, nil, 0},
		{"members at one level", nil, []string{a}, 10},
		{"members elsewhere", elsewhere, []string{}, 0},
		{"one of those that were remembered comes", elsewhere, []string{a}, 10},
		{"nothing changes", elsewhere, []string{a}, 10},
		{"it leaves", elsewhere, nil, 0},
		{"one level again", nil, []string{a}, 10},
	} {
		members := slices.Clone(step.members)
		for _, dir := range step.of {
			members = append(members, member(t, dir))
		}
		if err := g.scope.Set(members); err != nil {
			t.Fatal(err)
		}
		before, _ := remembered(t, g.scope)
		outside.Does("getpgid", 10)
		inside.Does("getpgid", 10)
		if n := g.runs(0); n != step.inside {
			t.Errorf("%s: it ran %d times, want %d", step.sentence, n, step.inside)
		}
		var want []uint64
		if step.members != nil {
			want = append(want, member(t, b).CgroupID)
		}
		if step.members != nil && step.inside == 0 {
			want = append(want, member(t, a).CgroupID)
		}
		slices.Sort(want)
		epoch, ids := remembered(t, g.scope)
		// Other tasks of the machine make the call, too.
		if !slices.Equal(slices.DeleteFunc(ids, func(id uint64) bool { return !slices.Contains(want, id) && step.members != nil }), want) {
			t.Errorf("%s: remembered are %v, want %v", step.sentence, ids, want)
		}
		if remembers := step.members != nil; remembers != (epoch != 0) || epoch != before {
			t.Errorf("%s: the epoch is %d, and was %d", step.sentence, epoch, before)
		}
		if same := step.sentence == "nothing changes"; epoch != 0 && same != (epoch == former) {
			t.Errorf("%s: the epoch is %d after %d", step.sentence, epoch, former)
		}
		former = epoch
	}
}

// TestATaskOfAMemberThatComesIsNoOutsider has a cgroup come and go while its tasks make calls,
// which remember it as an outsider until the moment it comes.
func TestATaskOfAMemberThatComesIsNoOutsider(t *testing.T) {
	g := onGetpgid(t, licensed(ebpf.TracePoint, "Proprietary"))
	a := tasks.Cgroup(t, "skep-a")
	one, other := tasks.Start(t, a), tasks.Start(t, a)
	with := append(slices.Clone(elsewhere), member(t, a))
	meanwhile(t, func(int) error {
		one.Does("getpgid", 1000)
		return nil
	}, func() {
		for round := range int(many(2000)) {
			for _, members := range [][]Member{elsewhere, with} {
				if err := g.scope.Set(members); err != nil {
					t.Fatal(err)
				}
			}
			g.runs(0)
			other.Does("getpgid", 10)
			if n := g.runs(0); n < 10 {
				t.Fatalf("round %d: it ran %d times for a task of a member that made 10 calls", round, n)
			}
		}
	})
}

func TestAScopeThatWasLeftBetweenTwoWritesRemembersAgain(t *testing.T) {
	s, _ := newScope(t)
	if err := s.Set(elsewhere); err != nil {
		t.Fatal(err)
	}
	if err := s.setEpoch(false); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(elsewhere); err != nil {
		t.Fatal(err)
	}
	if epoch, _ := remembered(t, s); epoch == 0 {
		t.Error("it remembers nothing")
	}
}

// TestAScopeOfAnOlderAgentIsSet has a scope without a map of outsiders.
func TestAScopeOfAnOlderAgentIsSet(t *testing.T) {
	all := newMaps(t, "s")
	delete(all, outsidersName("s"))
	s, ok := Scopes(all)["s"]
	if !ok {
		t.Fatal("it is not found")
	}
	if err := s.Set(elsewhere); err != nil {
		t.Fatal(err)
	}
	if ids, err := s.Cgroups(); err != nil || len(ids) != len(elsewhere) {
		t.Errorf("the scope holds %v, %v", ids, err)
	}
}
