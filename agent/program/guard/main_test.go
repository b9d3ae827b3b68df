package guard

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/test/harness/tasks"
)

func TestMain(m *testing.M) { tasks.Main(m) }

// member is a cgroup as a member of a scope.
func member(t testing.TB, dir string) Member {
	t.Helper()
	h, err := FindHierarchy(tasks.Root(t))
	if err != nil {
		t.Fatal(err)
	}
	m, err := h.Member(dir)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// newMaps makes the maps of a scope.
func newMaps(t testing.TB, scope string) map[string]*ebpf.Map {
	t.Helper()
	tasks.Root(t)
	all := map[string]*ebpf.Map{}
	for name, spec := range Maps(scope) {
		m, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		all[name] = m
	}
	return all
}

// meanwhile calls do again and again, each time with a greater number, until what ends.
func meanwhile(t testing.TB, do func(round int) error, what func()) {
	t.Helper()
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for round := 0; ; round++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := do(round); err != nil {
				ended <- err
				return
			}
		}
	}()
	what()
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// set sets the members of a scope.
func set(t testing.TB, s Scope, dirs ...string) {
	t.Helper()
	var members []Member
	for _, dir := range dirs {
		members = append(members, member(t, dir))
	}
	if err := s.Set(members); err != nil {
		t.Fatal(err)
	}
}
