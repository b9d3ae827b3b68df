package loader

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/program/guard"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/corpus"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/tasks"
)

// inScopes has every program guarded that has a scope by its name.
func inScopes(scopes map[string]string) lister {
	return func(of v1alpha1.Identity, program string, at v1alpha1.Attachment) []plan.Load {
		all := plan.Loads(of, program, at)
		for i := range all {
			all[i].Scope = scopes[program]
			all[i].Instance = plan.InScope(all[i].Instance, all[i].Scope)
		}
		return all
	}
}

// fromCorpus reads an object of test/corpus.
func fromCorpus(t testing.TB, name string) []byte {
	t.Helper()
	body, err := corpus.Objects.ReadFile("testdata/" + name + ".o")
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// bySections are an object's programs of tasks, attached as their sections say.
func bySections(t testing.TB, object []byte) []v1alpha1.Program {
	t.Helper()
	read, err := objectfile.Read(object)
	if err != nil {
		return nil
	}
	var all []v1alpha1.Program
	for name, ps := range read.Spec.Programs {
		h, target, _ := hook.FromSection(ps.SectionName)
		if !h.Guardable() || !h.Attachable || target == "" {
			continue
		}
		at := v1alpha1.Attachment{Hook: h.Name}
		switch h.Shape {
		case hook.Tracepoint:
			at.Tracepoint = target
		case hook.KernelFunction:
			at.Functions = &v1alpha1.Functions{Names: []string{target}}
		}
		all = append(all, v1alpha1.Program{Name: name, Attach: []v1alpha1.Attachment{at}})
	}
	slices.SortFunc(all, func(a, b v1alpha1.Program) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// TestEveryProgramOfTasksLoadsWithAGuard loads the corpus: CO-RE, subprograms, callbacks,
// variables of the kernel, timers, tail calls, sleepable programs.
func TestEveryProgramOfTasksLoadsWithAGuard(t *testing.T) {
	tasks.Root(t)
	objects, err := fs.Glob(corpus.Objects, "testdata/*.o")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, name := range objects {
		object := fromCorpus(t, strings.TrimSuffix(path.Base(name), ".o"))
		for _, program := range bySections(t, object) {
			load := func(kind string, scopes map[string]string) error {
				payload := intent.Payload{Application: v1alpha1.Identity{Kind: kind, Name: "app"}, Programs: []v1alpha1.Program{program}}
				p, err := prepare(opened(t, payload), object, inScopes(scopes), onThisKernel())
				if err != nil {
					return err
				}
				if denied := p.withinNamespace(nil); denied != nil {
					t.Log(denied)
					return nil
				}
				r, _, err := Load(p, nil, nil, nil)
				if err != nil {
					return err
				}
				if len(r.Scopes()) != len(scopes) {
					t.Errorf("%s of %s has the scopes %v", program.Name, name, r.Scopes())
				}
				return r.Close()
			}
			if err := load(v1alpha1.KindClusterBpfApplication, nil); err != nil {
				continue
			}
			count++
			if err := load(v1alpha1.KindBpfApplication, map[string]string{program.Name: "s"}); err != nil {
				t.Errorf("%s of %s loads, and does not with a guard for a namespace: %v\n%s", program.Name, name, err, LogOf(err))
			}
		}
	}
	if t.Logf("%d programs", count); count < 20 {
		t.Errorf("only %d programs were loaded", count)
	}
}

// ran reads the variable of that name, in which programs of the corpus count their runs.
func ran(t *testing.T, p *Prepared, r *Revision) uint64 {
	t.Helper()
	return binary.NativeEndian.Uint64(variable(t, p, r, "ran"))
}

// variable is what the memory of an object's variables has from one of them on.
func variable(t *testing.T, p *Prepared, r *Revision, name string) []byte {
	t.Helper()
	section, ok := p.Spec.Maps[".bss"].Value.(*btf.Datasec)
	if !ok {
		t.Fatal("the object has no variables")
	}
	value, err := r.Maps[".bss"].LookupBytes(uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range section.Vars {
		if v.Type.TypeName() == name {
			return value[v.Offset:]
		}
	}
	t.Fatalf("the object has no variable %s", name)
	return nil
}

// member is a cgroup as a member of a scope.
func member(t *testing.T, dir string) []guard.Member {
	t.Helper()
	h, err := guard.FindHierarchy(tasks.Root(t))
	if err != nil {
		t.Fatal(err)
	}
	m, err := h.Member(dir)
	if err != nil {
		t.Fatal(err)
	}
	return []guard.Member{m}
}

func onGetpgid(p *ebpf.Program) (io.Closer, error) {
	return link.Tracepoint("syscalls", "sys_enter_getpgid", p, nil)
}

func onSysEnter(p *ebpf.Program) (io.Closer, error) {
	return link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: p})
}

func TestGuardedObjectsRunForTheTasksOfTheirScope(t *testing.T) {
	for sentence, c := range map[string]struct {
		object, program string
		attach          func(*ebpf.Program) (io.Closer, error)
	}{
		"with subprograms":               {"functions", "one", onGetpgid},
		"with CO-RE":                     {"core_relocs", "relocates", onSysEnter},
		"with callbacks":                 {"loops", "repeats", onSysEnter},
		"with variables of the kernel":   {"ksym_typed", "reads_symbols", onSysEnter},
		"with tail calls":                {"tail_calls", "first", onGetpgid},
		"on a system call's own wrapper": {"ksyscall", "entry", func(p *ebpf.Program) (io.Closer, error) { return link.Kprobe("sys_getpgid", p, nil) }},
		"sleepable":                      {"lsm_sleepable", "opens", func(p *ebpf.Program) (io.Closer, error) { return link.AttachLSM(link.LSMOptions{Program: p}) }},
	} {
		t.Run(sentence, func(t *testing.T) {
			tasks.Root(t)
			object := fromCorpus(t, c.object)
			payload := intent.Payload{}
			for _, program := range bySections(t, object) {
				if program.Name == c.program {
					payload.Programs = append(payload.Programs, program)
				}
			}
			p, err := prepare(opened(t, payload), object, inScopes(map[string]string{c.program: "s"}), onThisKernel())
			if err != nil {
				t.Fatal(err)
			}
			r, _, err := Load(p, nil, nil, nil)
			if err != nil {
				t.Skipf("SKIPPED: this kernel does not load it: %v", err)
			}
			defer func() { _ = r.Close() }()
			for _, load := range inScopes(map[string]string{c.program: "s"})(v1alpha1.Identity{}, c.program, payload.Programs[0].Attach[0]) {
				l, err := c.attach(r.Programs[load.Instance])
				if err != nil {
					t.Skipf("SKIPPED: this kernel does not attach it: %v", err)
				}
				t.Cleanup(func() { _ = l.Close() })
			}
			a, b := tasks.Cgroup(t, "skep-a"), tasks.Cgroup(t, "skep-b")
			outside := tasks.Start(t, b)
			if err := r.Scopes()["s"].Set(member(t, a)); err != nil {
				t.Fatal(err)
			}
			before := ran(t, p, r)
			for _, call := range []string{"getpgid", "open"} {
				outside.Does(call, 1000)
			}
			if after := ran(t, p, r); after != before {
				t.Errorf("it ran %d times for a task outside", after-before)
			}
			// Its start makes system calls, too.
			inside := tasks.Start(t, a)
			for _, call := range []string{"getpgid", "open"} {
				inside.Does(call, 1000)
			}
			if after := ran(t, p, r); after < before+1000 {
				t.Errorf("it ran %d times for 1000 calls of a member", after-before)
			}
			if c.object == "ksyscall" {
				if named := binary.NativeEndian.Uint32(variable(t, p, r, "last_pid")); int(named) != inside.PID() {
					t.Errorf("BPF_KSYSCALL read process %d, want %d", named, inside.PID())
				}
			}
		})
	}
}

// TestProgramsOfTwoScopesShareTheirOtherMaps has two programs of one object count in one
// variable, each for another tenant.
func TestProgramsOfTwoScopesShareTheirOtherMaps(t *testing.T) {
	tasks.Root(t)
	object := fromCorpus(t, "functions")
	scopes := map[string]string{"one": "first", "two": "second"}
	p, err := prepare(opened(t, intent.Payload{Programs: bySections(t, object)}), object, inScopes(scopes), onThisKernel())
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := Load(p, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	l, err := onGetpgid(r.Programs["one@scope/first"])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	a, b := tasks.Cgroup(t, "skep-a"), tasks.Cgroup(t, "skep-b")
	ofA, ofB := tasks.Start(t, a), tasks.Start(t, b)
	all := r.Scopes()
	if err := errors.Join(all["first"].Set(member(t, a)), all["second"].Set(member(t, b))); err != nil {
		t.Fatal(err)
	}
	ofB.Does("getpgid", 100)
	if n := ran(t, p, r); n != 0 {
		t.Errorf("the first program ran for the tenant of the second: %d", n)
	}
	ofA.Does("getpgid", 100)
	if n := ran(t, p, r); n != 100 {
		t.Errorf("the first program counted %d of 100", n)
	}
	exit, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_exit", Program: r.Programs["two@scope/second"]})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = exit.Close() }()
	ofB.Does("getpgid", 100)
	if n := ran(t, p, r); n < 300 {
		t.Errorf("both counted %d in their variable, the second adds 2 for each call", n)
	}
}

// guardedTracer is a tracepoint program in a scope; what differs makes other revisions.
func guardedTracer(t *testing.T, name string) *Prepared {
	t.Helper()
	o := opened(t, intent.Payload{Programs: program("tracepoint_count", "tracepoint", "syscalls/sys_enter_getpgid")})
	p, err := prepare(o, programs.Object("tracepoint_count"), inScopes(map[string]string{"tracepoint_count": "s"}), onThisKernel())
	if err != nil {
		t.Fatal(err)
	}
	p.Revision = name
	return p
}

func TestAScopeIsARevisionsOwn(t *testing.T) {
	need.Kernel(t)
	first := strings.Repeat("a", 32)
	p := guardedTracer(t, first)
	r := load(t, p, nil)
	if err := r.Scopes()["s"].Set([]guard.Member{{CgroupID: 77, Level: 2}}); err != nil {
		t.Fatal(err)
	}
	holds := func(sentence string, r *Revision, want ...uint64) {
		t.Helper()
		scope, ok := r.Scopes()["s"]
		if !ok {
			t.Fatalf("%s: there is no scope", sentence)
		}
		if ids, err := scope.Cgroups(); err != nil || !slices.Equal(ids, want) {
			t.Errorf("%s: the scope holds %v (%v), want %v", sentence, ids, err, want)
		}
	}
	again, reports, err := Load(p, r, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	holds("of the same revision that is loaded again", again, 77)
	next, more, err := Load(guardedTracer(t, strings.Repeat("b", 32)), r, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = next.Close() }()
	holds("of the next revision", next)
	holds("of the one before it", r, 77)
	plain, last, err := Load(tracer(t, "1"), r, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	for _, report := range slices.Concat(reports, more, last) {
		if guard.IsMap(report.Map) {
			t.Errorf("a map of a scope is reported as the application's: %+v", report)
		}
	}
}

func TestScopesCountAsMemory(t *testing.T) {
	need.Kernel(t)
	guarded, plain := guardedTracer(t, strings.Repeat("a", 32)), tracer(t, "1")
	with, without := memory(t, guarded, nil), memory(t, plain, nil)
	if with < without+guard.MaxMembers*16 {
		t.Errorf("with a scope the maps take %d bytes, without one %d", with, without)
	}
	r := load(t, guarded, nil)
	if all := memoryOf(map[string]*Revision{"a": r}); all < with {
		t.Errorf("loaded, the maps take %d bytes, not %d", all, with)
	}
}

func TestWhatCannotBeGuardedIsRefused(t *testing.T) {
	payload := intent.Payload{Programs: program("count_packets", "xdp", "")}
	_, err := prepare(opened(t, payload), programs.Object("xdp_count"), inScopes(map[string]string{"count_packets": "s"}), onThisKernel())
	if unsupported := new(guard.UnsupportedError); !errors.As(err, &unsupported) {
		t.Errorf("an XDP program in a scope: %v", err)
	}
	for name := range guard.Maps("s") {
		err := ownMaps(&ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{name: {Type: ebpf.Hash}}})
		if err == nil || !strings.Contains(err.Error(), "those of scope guards") {
			t.Errorf("an object with the map %s: %v", name, err)
		}
		payload := intent.Payload{Programs: payload.Programs, Maps: map[string]v1alpha1.Map{name: {OnUpdate: v1alpha1.MapReset}}}
		_, err = prepare(opened(t, payload), programs.Object("xdp_count"), plan.Loads, onThisKernel())
		if err == nil || !strings.Contains(err.Error(), "no such map") {
			t.Errorf("a definition with the map %s: %v", name, err)
		}
	}
}
