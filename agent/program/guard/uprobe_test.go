package guard

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/harness/tasks"
)

// worker is a binary that calls its function work as often as it is said.
func worker(t testing.TB, times uint32) string {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("SKIPPED: the binary is one of x86-64")
	}
	path := filepath.Join(t.TempDir(), "worker")
	if err := os.WriteFile(path, userbinary.Worker(times), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// many is how many calls a test causes. An emulated machine is slower by a hundred times.
func many(n uint32) uint32 {
	if testing.Short() {
		return n / 100
	}
	return n
}

// TestAUprobeOnASharedBinaryRunsForOneOfTwoTenants counts the calls of one function in two
// cgroups. The binary calls work once by itself.
func TestAUprobeOnASharedBinaryRunsForOneOfTwoTenants(t *testing.T) {
	inside, outside := many(100_000), many(1_000_000)
	for name, c := range map[string]struct {
		attach ebpf.AttachType
		flags  uint32
		to     func(*link.Executable, *ebpf.Program) (io.Closer, error)
	}{
		"uprobe": {ebpf.AttachNone, 0, func(x *link.Executable, p *ebpf.Program) (io.Closer, error) { return x.Uprobe("work", p, nil) }},
		"uprobe, sleepable": {ebpf.AttachNone, sleepable, func(x *link.Executable, p *ebpf.Program) (io.Closer, error) {
			return x.Uprobe("work", p, nil)
		}},
		"uretprobe": {ebpf.AttachNone, 0, func(x *link.Executable, p *ebpf.Program) (io.Closer, error) { return x.Uretprobe("work", p, nil) }},
		"uprobe.multi": {ebpf.AttachTraceUprobeMulti, 0, func(x *link.Executable, p *ebpf.Program) (io.Closer, error) {
			return x.UprobeMulti([]string{"work"}, p, nil)
		}},
		"uretprobe.multi": {ebpf.AttachTraceUprobeMulti, 0, func(x *link.Executable, p *ebpf.Program) (io.Closer, error) {
			return x.UretprobeMulti([]string{"work"}, p, nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tasks.Root(t)
			few, lots := worker(t, inside-1), worker(t, outside-1)
			attach := func(path string) func(*ebpf.Program) (io.Closer, error) {
				return func(p *ebpf.Program) (io.Closer, error) {
					x, err := link.OpenExecutable(path)
					if err != nil {
						return nil, err
					}
					return c.to(x, p)
				}
			}
			spec := counted(ebpf.Kprobe, c.attach, "", c.flags)
			lacks(t, spec, attach(few))
			g, err := loadGuarded(t, spec)
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{few, lots} {
				l, err := attach(path)(g.Programs["counts_runs"])
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() })
			}
			a, b := tasks.Cgroup(t, "skep-a"), tasks.Cgroup(t, "skep-b")
			set(t, g.scope, a)
			for _, run := range []struct {
				cgroup, path string
				want         uint32
			}{{a, few, inside}, {b, lots, 0}} {
				tasks.Into(t, exec.CommandContext(t.Context(), run.path), run.cgroup, (*exec.Cmd).Run)
				if n := g.runs(0); n != uint64(run.want) {
					t.Errorf("in %s the program ran %d times, want %d", filepath.Base(run.cgroup), n, run.want)
				}
			}
		})
	}
}

// TestASessionThatDoesNotRunOnEntryDoesNotRunOnReturn has a task join the scope while it is
// in the function: another program adds its cgroup between entry and return.
func TestASessionThatDoesNotRunOnEntryDoesNotRunOnReturn(t *testing.T) {
	session := counted(ebpf.Kprobe, ebpf.AttachTraceKprobeSession, "", 0)
	attach := func(p *ebpf.Program) (io.Closer, error) {
		return link.KprobeMulti(p, link.KprobeMultiOptions{Symbols: []string{"__x64_sys_openat"}, Session: true})
	}
	tasks.Root(t)
	lacks(t, session, attach)
	if err := Put(session, "s"); err != nil {
		t.Fatal(err)
	}
	collection := &ebpf.CollectionSpec{Maps: Maps("s"), Programs: map[string]*ebpf.ProgramSpec{"session": session, "joins": {
		Name: "joins", Type: ebpf.Kprobe, License: "GPL", Instructions: asm.Instructions{
			asm.FnGetCurrentCgroupId.Call(),
			asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
			asm.StoreImm(asm.RFP, -16, 1, asm.Word),
			asm.LoadMapPtr(asm.R1, 0).WithReference(cgroupsName("s")),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -16),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnMapUpdateElem.Call(),
			asm.Mov.Imm(asm.R0, 0), asm.Return(),
		}}}}
	collection.Maps[cgroupsName("s")].Flags = 0
	collection.Maps["counts"] = &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 4}
	loaded, err := ebpf.NewCollection(collection)
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	g := guarded{loaded, t, Scopes(loaded.Maps)["s"]}
	l, err := attach(loaded.Programs["session"])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	a, b := tasks.Cgroup(t, "skep-a"), tasks.Cgroup(t, "skep-b")
	p := tasks.Start(t, b)
	set(t, g.scope, a, b)
	p.Does("open", 1)
	if n := g.runs(0); n < 2 {
		t.Errorf("of a member it ran %d times, not on entry and return", n)
	}
	set(t, g.scope, a)
	// The filter lets all pass, since the other program adds to the cgroups alone.
	value, err := loaded.Maps[levelsName("s")].LookupBytes(uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	copy(value[filterAt:], bytes.Repeat([]byte{0xff}, valueBytes-filterAt))
	if err := loaded.Maps[levelsName("s")].Put(uint32(0), value); err != nil {
		t.Fatal(err)
	}
	between, err := link.Kprobe("security_file_open", loaded.Programs["joins"], nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Does("open", 1)
	if n := g.runs(0); n != 0 {
		t.Errorf("it ran %d times on the return of a call that it did not see", n)
	}
	if ids, err := g.scope.Cgroups(); err != nil || len(ids) != 2 {
		t.Errorf("the task did not join while it was in the function: %v, %v", ids, err)
	}
	if err := between.Close(); err != nil {
		t.Error(err)
	}
}
