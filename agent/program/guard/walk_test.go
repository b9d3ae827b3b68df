package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/test/harness/tasks"
)

// onGetpgid loads a guarded program that counts, and attaches it to getpgid.
func onGetpgid(t testing.TB, spec *ebpf.ProgramSpec) guarded {
	t.Helper()
	g, err := loadGuarded(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.Tracepoint("syscalls", "sys_enter_getpgid", g.Programs["counts_runs"], nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return g
}

// licensed is a program that counts, under a licence.
func licensed(kind ebpf.ProgramType, license string) *ebpf.ProgramSpec {
	spec := counted(kind, ebpf.AttachNone, "", 0)
	spec.License = license
	return spec
}

// calls is how often a guarded program asks the kernel by a helper.
func calls(spec *ebpf.ProgramSpec, helper asm.BuiltinFunc) int {
	return len(slices.DeleteFunc(slices.Clone(spec.Instructions), func(i asm.Instruction) bool {
		return !i.IsBuiltinCall() || asm.BuiltinFunc(i.Constant) != helper
	}))
}

func TestAProgramFollowsPointersToItsCgroupsWhereTheKernelAllowsItAndTheyStay(t *testing.T) {
	tasks.Root(t)
	for sentence, c := range map[string]struct {
		license string
		flags   uint32
		want    int
	}{
		"GPL":            {"GPL", 0, 1},
		"dual licensed":  {"Dual MIT/GPL", 0, 1},
		"another":        {"Apache-2.0", 0, 0},
		"none":           {"", 0, 0},
		"GPL, sleepable": {"GPL", sleepable, 0},
	} {
		spec := licensed(ebpf.Kprobe, c.license)
		spec.Flags = c.flags
		if err := Put(spec, "s"); err != nil {
			t.Fatal(err)
		}
		if n := calls(spec, asm.FnGetCurrentTaskBtf); n != c.want {
			t.Errorf("%s: it asks for the task %d times, want %d", sentence, n, c.want)
		}
		if n := calls(spec, asm.FnGetCurrentAncestorCgroupId); n != MaxLevels {
			t.Errorf("%s: it can ask for %d ancestors", sentence, n)
		}
		if n := calls(spec, asm.FnGetCurrentCgroupId); n != 2*(1-c.want) {
			t.Errorf("%s: it asks for its own cgroup at %d places", sentence, n)
		}
	}
}

// TestATaskMatchesHoweverDeepItIs has a task move itself into cgroups below, of which the last
// are deeper than parents are followed, and into one above all levels of the scope.
func TestATaskMatchesHoweverDeepItIs(t *testing.T) {
	const times = 100
	for _, license := range []string{"GPL", "Proprietary"} {
		t.Run(license, func(t *testing.T) {
			g := onGetpgid(t, licensed(ebpf.TracePoint, license))
			above := tasks.Cgroup(t, "skep-above")
			a, b := tasks.Cgroup(t, above+"/a"), tasks.Cgroup(t, above+"/b")
			high := tasks.Cgroup(t, "skep-high")
			p := tasks.Start(t, above)
			expect := func(where string, want uint64) {
				t.Helper()
				p.Does("getpgid", times)
				if n := g.runs(0); n != want {
					t.Errorf("%s: it ran %d times, want %d", where, n, want)
				}
			}
			// The first level is another's, and a level below that the task may not have.
			members := []Member{member(t, high), member(t, a), {CgroupID: 1 << 40, Level: 12}}
			if err := g.scope.Set(members); err != nil {
				t.Fatal(err)
			}
			expect("above the member", 0)
			inner, outer := a, b
			for range maxSteps + 3 {
				p.Moves(inner)
				expect("in "+inner, times)
				p.Moves(outer)
				expect("in "+outer, 0)
				inner, outer = tasks.Cgroup(t, inner+"/n"), tasks.Cgroup(t, outer+"/n")
			}
			p.Moves(high)
			expect("in the other member", times)
		})
	}
}

// TestATaskThatIsMovedIsNotTakenForAnother has a task outside of the scope be moved between
// cgroups that come and go, as members do, while it makes system calls.
func TestATaskThatIsMovedIsNotTakenForAnother(t *testing.T) {
	for _, license := range []string{"GPL", "Proprietary"} {
		t.Run(license, func(t *testing.T) { movesTasks(t, license) })
	}
}

func movesTasks(t *testing.T, license string) {
	t.Helper()
	g := onGetpgid(t, licensed(ebpf.TracePoint, license))
	a, b := tasks.Cgroup(t, "skep-a"), tasks.Cgroup(t, "skep-b")
	inside, outside := tasks.Start(t, a), tasks.Start(t, b)
	if err := g.scope.Set(append(slices.Clone(elsewhere), member(t, a))); err != nil {
		t.Fatal(err)
	}
	// move puts a process into a cgroup that is made for it, and back.
	move := func(p *tasks.Task, home, to string) error {
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		for _, dir := range []string{to, home} {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, p.PID()), 0); err != nil {
				return err
			}
		}
		return os.Remove(to)
	}
	times := int(many(1_000_000))
	meanwhile(t, func(round int) error {
		if err := move(inside, a, fmt.Sprintf("%s/%d", a, round)); err != nil {
			return err
		}
		return move(outside, b, fmt.Sprintf("%s/%d", b, round))
	}, func() {
		outside.Does("getpgid", times)
		if n := g.runs(0); n != 0 {
			t.Errorf("it ran %d times for a task outside", n)
		}
		inside.Does("getpgid", times)
		if n := g.runs(0); n != uint64(times) {
			t.Errorf("it ran %d times for %d calls of a task that stays below a member", n, times)
		}
	})
}

// TestAGuardLeavesNothingToTheProgram has programs read memory by the registers that the
// guard uses.
func TestAGuardLeavesNothingToTheProgram(t *testing.T) {
	for _, r := range []asm.Register{asm.R0, asm.R2, asm.R3, asm.R4, asm.R5, asm.R7, asm.R8, asm.R9} {
		for _, license := range []string{"GPL", "Proprietary"} {
			spec := licensed(ebpf.TracePoint, license)
			spec.Instructions = append(asm.Instructions{asm.LoadMem(asm.R1, r, 0, asm.DWord).WithSymbol("counts_runs")}, spec.Instructions...)
			spec.Instructions[1] = spec.Instructions[1].WithSymbol("")
			if _, err := loadGuarded(t, spec); err == nil {
				t.Errorf("a program under %s reads memory by %s", license, r)
			}
		}
	}
}
