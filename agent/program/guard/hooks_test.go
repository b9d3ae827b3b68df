package guard

import (
	"errors"
	"io"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/tasks"
)

// counted is a program that counts its runs in the first entry of counts.
func counted(kind ebpf.ProgramType, attach ebpf.AttachType, to string, flags uint32) *ebpf.ProgramSpec {
	return &ebpf.ProgramSpec{Name: "counts_runs", Type: kind, AttachType: attach, AttachTo: to, Flags: flags, License: "GPL", Instructions: count(0)}
}

// count counts in an entry of the map counts, and returns 0.
func count(entry int32) asm.Instructions {
	return asm.Instructions{
		asm.StoreImm(asm.RFP, -4, int64(entry), asm.Word).WithSymbol("counts_runs"),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, 0).WithReference("counts"),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	}
}

// guarded are loaded programs with the scopes that they have.
type guarded struct {
	*ebpf.Collection
	t     testing.TB
	scope Scope
}

// loadGuarded loads programs with a guard before each, and a map to count in.
func loadGuarded(t testing.TB, specs ...*ebpf.ProgramSpec) (guarded, error) {
	t.Helper()
	tasks.Root(t)
	collection := &ebpf.CollectionSpec{Maps: Maps("s"), Programs: map[string]*ebpf.ProgramSpec{}}
	collection.Maps["counts"] = &ebpf.MapSpec{Name: "counts", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 4}
	for _, spec := range specs {
		if err := Put(spec, "s"); err != nil {
			t.Fatal(err)
		}
		collection.Programs[spec.Name] = spec
	}
	loaded, err := ebpf.NewCollection(collection)
	if err != nil {
		return guarded{}, err
	}
	t.Cleanup(loaded.Close)
	return guarded{loaded, t, Scopes(loaded.Maps)["s"]}, nil
}

// runs is how often the program counted in an entry since it was asked last.
func (g guarded) runs(entry uint32) uint64 {
	g.t.Helper()
	var n uint64
	if err := g.Maps["counts"].Lookup(entry, &n); err != nil {
		g.t.Fatal(err)
	}
	if err := g.Maps["counts"].Put(entry, uint64(0)); err != nil {
		g.t.Fatal(err)
	}
	return n
}

// sleepable is BPF_F_SLEEPABLE.
const sleepable = unix.BPF_F_SLEEPABLE

const getpgid = "__x64_sys_getpgid"

// kprobe attaches a program as a kprobe of getpgid.
func kprobe(p *ebpf.Program) (io.Closer, error) { return link.Kprobe(getpgid, p, nil) }

// tracing attaches a program for which the kernel knows the place.
func tracing(p *ebpf.Program) (io.Closer, error) {
	return link.AttachTracing(link.TracingOptions{Program: p})
}

// ofSockets is a hook of the sockets of all cgroups below the root.
func ofSockets(root string, kind ebpf.ProgramType, attach ebpf.AttachType, call string) on {
	spec := counted(kind, attach, "", 0)
	// The call is let through.
	spec.Instructions[len(spec.Instructions)-2].Constant = 1
	return on{spec, func(p *ebpf.Program) (io.Closer, error) {
		return link.AttachCgroup(link.CgroupOptions{Path: root, Attach: attach, Program: p})
	}, call, true}
}

func lsm(p *ebpf.Program) (io.Closer, error) { return link.AttachLSM(link.LSMOptions{Program: p}) }

// on is a hook as the tests attach to it, and the system call that it sees. A hook that sees
// others, too, is not exact.
type on struct {
	spec   *ebpf.ProgramSpec
	attach func(*ebpf.Program) (io.Closer, error)
	call   string
	exact  bool
}

func hooks(root string) map[string]on {
	return map[string]on{
		"kprobe":                       {counted(ebpf.Kprobe, ebpf.AttachNone, "", 0), kprobe, "getpgid", true},
		"kprobe under another licence": {licensed(ebpf.Kprobe, "Apache-2.0"), kprobe, "getpgid", true},
		"kretprobe": {counted(ebpf.Kprobe, ebpf.AttachNone, "", 0), func(p *ebpf.Program) (io.Closer, error) {
			return link.Kretprobe(getpgid, p, nil)
		}, "getpgid", true},
		"kprobe.multi": {counted(ebpf.Kprobe, ebpf.AttachTraceKprobeMulti, "", 0), func(p *ebpf.Program) (io.Closer, error) {
			return link.KprobeMulti(p, link.KprobeMultiOptions{Symbols: []string{getpgid}})
		}, "getpgid", true},
		"kretprobe.multi": {counted(ebpf.Kprobe, ebpf.AttachTraceKprobeMulti, "", 0), func(p *ebpf.Program) (io.Closer, error) {
			return link.KretprobeMulti(p, link.KprobeMultiOptions{Symbols: []string{getpgid}})
		}, "getpgid", true},
		"tracepoint": {counted(ebpf.TracePoint, ebpf.AttachNone, "", 0), func(p *ebpf.Program) (io.Closer, error) {
			return link.Tracepoint("syscalls", "sys_enter_getpgid", p, nil)
		}, "getpgid", true},
		"tracepoint under another licence": {licensed(ebpf.TracePoint, "Apache-2.0"), func(p *ebpf.Program) (io.Closer, error) {
			return link.Tracepoint("syscalls", "sys_enter_getpgid", p, nil)
		}, "getpgid", true},
		"raw_tp": {counted(ebpf.RawTracepoint, ebpf.AttachNone, "", 0), func(p *ebpf.Program) (io.Closer, error) {
			return link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: p})
		}, "getpgid", false},
		"tp_btf":                 {counted(ebpf.Tracing, ebpf.AttachTraceRawTp, "sys_enter", 0), tracing, "getpgid", false},
		"fentry":                 {counted(ebpf.Tracing, ebpf.AttachTraceFEntry, getpgid, 0), tracing, "getpgid", true},
		"fexit":                  {counted(ebpf.Tracing, ebpf.AttachTraceFExit, getpgid, 0), tracing, "getpgid", true},
		"fmod_ret":               {counted(ebpf.Tracing, ebpf.AttachModifyReturn, "security_file_open", 0), tracing, "open", false},
		"lsm":                    {counted(ebpf.LSM, ebpf.AttachLSMMac, "file_open", 0), lsm, "open", false},
		"lsm, sleepable":         {counted(ebpf.LSM, ebpf.AttachLSMMac, "file_open", sleepable), lsm, "open", false},
		"cgroup/connect4":        ofSockets(root, ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect, "connect"),
		"cgroup/sock_create":     ofSockets(root, ebpf.CGroupSock, ebpf.AttachCGroupInetSockCreate, "connect"),
		"cgroup/getsockopt":      ofSockets(root, ebpf.CGroupSockopt, ebpf.AttachCGroupGetsockopt, "getsockopt"),
		"lsm of a void function": {counted(ebpf.LSM, ebpf.AttachLSMMac, "file_free_security", 0), lsm, "open", false},
	}
}

// lacks skips where this kernel has no such hook, whether a program is guarded or not.
func lacks(t *testing.T, spec *ebpf.ProgramSpec, attach func(*ebpf.Program) (io.Closer, error)) {
	t.Helper()
	plain := spec.Copy()
	loaded, err := ebpf.NewCollection(&ebpf.CollectionSpec{
		Maps:     map[string]*ebpf.MapSpec{"counts": {Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 4}},
		Programs: map[string]*ebpf.ProgramSpec{"p": plain},
	})
	if err == nil {
		var l io.Closer
		if l, err = attach(loaded.Programs["p"]); err == nil {
			err = l.Close()
		}
		loaded.Close()
	}
	if err != nil {
		t.Skipf("SKIPPED: this kernel does not have it: %v", err)
	}
}

func TestAGuardedProgramRunsForTheTasksOfItsScopeAlone(t *testing.T) {
	const times = 1000
	for name, h := range hooks(tasks.Root(t)) {
		t.Run(name, func(t *testing.T) {
			tasks.Root(t)
			lacks(t, h.spec, h.attach)
			g, err := loadGuarded(t, h.spec)
			if err != nil {
				t.Fatal(err)
			}
			l, err := h.attach(g.Programs["counts_runs"])
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			a, b := tasks.Cgroup(t, "skep-a"), tasks.Cgroup(t, "skep-b")
			inner := tasks.Cgroup(t, a+"/inner")
			p := tasks.Start(t, b)
			expect := func(where string, runs bool) {
				t.Helper()
				// A run that began before goes on.
				p.Does(h.call, 1)
				_ = g.runs(0)
				p.Does(h.call, times)
				n := g.runs(0)
				if !runs && n != 0 || runs && (n < times || h.exact && n != times) {
					t.Errorf("%s: the program ran %d times for %d calls", where, n, times)
				}
			}
			expect("of a scope without members", false)
			set(t, g.scope, a)
			expect("in a cgroup outside", false)
			p.Moves(a)
			expect("after it moved to a member", true)
			p.Moves(inner)
			expect("below a member", true)
			p.Moves(b)
			expect("after it moved away", false)
			set(t, g.scope, a, b)
			expect("after its cgroup was added", true)
			set(t, g.scope, a)
			expect("after its cgroup was removed", false)
		})
	}
}

func TestWhatIsNoTaskIsNotGuarded(t *testing.T) {
	for _, spec := range []*ebpf.ProgramSpec{
		{Type: ebpf.XDP}, {Type: ebpf.SchedCLS}, {Type: ebpf.CGroupSKB}, {Type: ebpf.CGroupSock, AttachType: ebpf.AttachCgroupInetSockRelease},
		{Type: ebpf.PerfEvent}, {Type: ebpf.Extension}, {Type: ebpf.SkLookup}, {Type: ebpf.Tracing, AttachType: ebpf.AttachTraceIter},
		{Type: ebpf.LSM, AttachType: ebpf.AttachLSMCgroup}, {Type: ebpf.Netfilter}, {Type: ebpf.StructOps}, {Type: ebpf.UnspecifiedProgram},
	} {
		spec.Name, spec.Instructions = "f", asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
		var unsupported *UnsupportedError
		if err := Put(spec, "s"); !errors.As(err, &unsupported) || len(spec.Instructions) != 2 {
			t.Errorf("Put before %s (%s) = %v, %d instructions", spec.Type, spec.AttachType, err, len(spec.Instructions))
		}
	}
	if err := Put(&ebpf.ProgramSpec{Name: "f", Type: ebpf.Kprobe}, "s"); err == nil {
		t.Error("a program without instructions is guarded")
	}
}

func TestAHierarchyKnowsItsCgroups(t *testing.T) {
	root := tasks.Root(t)
	dir := tasks.Cgroup(t, "skep-a")
	inner := tasks.Cgroup(t, dir+"/inner")
	outer, below := member(t, dir), member(t, inner)
	if below.Level != outer.Level+1 || outer.Level < 1 || outer.CgroupID == below.CgroupID {
		t.Errorf("members are %+v and %+v", outer, below)
	}
	h, err := FindHierarchy(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{root, "/proc", root + "/..", root + "/skep-none"} {
		if m, err := h.Member(wrong); err == nil {
			t.Errorf("%s is %+v", wrong, m)
		}
	}
	if _, err := FindHierarchy(os.TempDir()); err == nil {
		t.Error("a folder of another file system is one of cgroup2")
	}
}

// TestAProgramThatFillsItsStackIsGuarded has one write and read 480 bytes of stack, with
// the guard's slot among them, and call a function of its own.
func TestAProgramThatFillsItsStackIsGuarded(t *testing.T) {
	insns := asm.Instructions{asm.Mov.Imm(asm.R6, 0).WithSymbol("counts_runs")}
	for at := int16(-8); at >= -480; at -= 8 {
		insns = append(insns, asm.Mov.Imm(asm.R1, int32(-at)), asm.StoreMem(asm.RFP, at, asm.R1, asm.DWord))
	}
	for at := int16(-8); at >= -480; at -= 8 {
		insns = append(insns, asm.LoadMem(asm.R1, asm.RFP, at, asm.DWord), asm.Add.Reg(asm.R6, asm.R1))
	}
	insns = append(insns, asm.Mov.Reg(asm.R1, asm.R6), asm.Call.Label("same"), asm.Mov.Reg(asm.R6, asm.R0),
		// 8 + 16 + … + 480, where nobody else wrote.
		asm.JNE.Imm(asm.R6, 60*61/2*8, "out"))
	rest := count(0)
	rest[0] = rest[0].WithSymbol("")
	insns = append(insns, rest...)
	insns = append(insns, asm.Mov.Reg(asm.R0, asm.R1).WithSymbol("same"), asm.Return())
	g := onGetpgid(t, &ebpf.ProgramSpec{Name: "counts_runs", Type: ebpf.TracePoint, License: "GPL", Instructions: insns})
	a, b := tasks.Cgroup(t, "skep-a"), tasks.Cgroup(t, "skep-b")
	set(t, g.scope, a)
	for cgroup, want := range map[string]uint64{a: 100, b: 0} {
		tasks.Start(t, cgroup).Does("getpgid", 100)
		if n := g.runs(0); n != want {
			t.Errorf("in %s it ran %d times, want %d", cgroup, n, want)
		}
	}
}

// TestAGuardedProgramDecidesForTheTasksOfItsScopeAlone has programs that deny every file.
func TestAGuardedProgramDecidesForTheTasksOfItsScopeAlone(t *testing.T) {
	denies := asm.Instructions{asm.Mov.Imm(asm.R0, -int32(unix.EPERM)).WithSymbol("denies"), asm.Return()}
	for name, spec := range map[string]*ebpf.ProgramSpec{
		"lsm":      {Name: "denies", Type: ebpf.LSM, AttachType: ebpf.AttachLSMMac, AttachTo: "file_open", License: "GPL", Instructions: denies},
		"fmod_ret": {Name: "denies", Type: ebpf.Tracing, AttachType: ebpf.AttachModifyReturn, AttachTo: "security_file_open", License: "GPL", Instructions: denies},
	} {
		t.Run(name, func(t *testing.T) {
			tasks.Root(t)
			attach := map[string]func(*ebpf.Program) (io.Closer, error){"lsm": lsm, "fmod_ret": tracing}[name]
			lacks(t, counted(spec.Type, spec.AttachType, spec.AttachTo, 0), attach)
			g, err := loadGuarded(t, spec)
			if err != nil {
				t.Fatal(err)
			}
			a, b := tasks.Cgroup(t, "skep-a"), tasks.Cgroup(t, "skep-b")
			inside, outside := tasks.Start(t, a), tasks.Start(t, b)
			set(t, g.scope, a)
			l, err := attach(g.Programs["denies"])
			if err != nil {
				t.Fatal(err)
			}
			if inside.Can("open") || !outside.Can("open") {
				t.Errorf("a member opens files: %v, another task: %v", inside.Can("open"), outside.Can("open"))
			}
			set(t, g.scope)
			if !inside.Can("open") {
				t.Error("it decides for a task of a scope without members")
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMembersChangeWithoutAGap has other cgroups come and go, at levels above and below,
// while tasks of a member and of none make system calls.
func TestMembersChangeWithoutAGap(t *testing.T) {
	g := onGetpgid(t, licensed(ebpf.TracePoint, "GPL"))
	high, outer, b := tasks.Cgroup(t, "skep-high"), tasks.Cgroup(t, "skep-outer"), tasks.Cgroup(t, "skep-b")
	a := tasks.Cgroup(t, outer+"/a")
	deep := tasks.Cgroup(t, tasks.Cgroup(t, outer+"/c")+"/deep")
	stays, above, below := member(t, a), member(t, high), member(t, deep)
	sets := [][]Member{{stays}, {above, stays}, {stays, below}, {above, below, stays}, {below, stays, above, {CgroupID: 1 << 40, Level: 30}}}
	if err := g.scope.Set(sets[3]); err != nil {
		t.Fatal(err)
	}
	inside, outside := tasks.Start(t, a), tasks.Start(t, b)
	times := int(many(500_000))
	meanwhile(t, func(round int) error { return g.scope.Set(sets[round%len(sets)]) }, func() {
		outside.Does("getpgid", times)
		if n := g.runs(0); n != 0 {
			t.Errorf("it ran %d times for a task outside", n)
		}
		inside.Does("getpgid", times)
		if n := g.runs(0); n != uint64(times) {
			t.Errorf("it ran %d times for %d calls of a member that stays", n, times)
		}
	})
}
