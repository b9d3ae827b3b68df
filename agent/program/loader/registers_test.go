package loader

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/program/guard"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/harness/tasks"
)

// readByProgram is the variable seen of the object registers.
type readByProgram struct {
	Runs  uint64
	Error int64
	Bytes [32]byte
}

// first are the first eight bytes.
func (s readByProgram) first() uint64 { return binary.NativeEndian.Uint64(s.Bytes[:]) }

// passing is a binary that calls work with a value in its first argument, rdi.
func passing(t testing.TB, value uint32) string {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("SKIPPED: the binary is one of x86-64")
	}
	path := filepath.Join(t.TempDir(), "passes")
	load := binary.LittleEndian.AppendUint32([]byte{0xbf}, value) // mov edi,value
	functions := []userbinary.Function{{Name: "before", Code: load}, {Name: "work", Code: []byte{0x90, 0x90}}}
	if err := os.WriteFile(path, userbinary.Make(functions, userbinary.Options{}), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// registersOf loads one program of the object registers for an application, in the scope of one cgroup.
func registersOf(t *testing.T, kind string, name, cgroup string, at v1alpha1.Attachment) *Revision {
	t.Helper()
	p := intent.Payload{Application: v1alpha1.Identity{Kind: kind, Name: "app"}, Programs: []v1alpha1.Program{{Name: name, Attach: []v1alpha1.Attachment{at}}}}
	prepared, err := prepare(opened(t, p), programs.Object("registers"), inScopes(map[string]string{name: "s"}), onThisKernel())
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := Load(prepared, nil, nil, nil)
	if err != nil {
		t.Fatalf("load %s: %v\n%s", name, err, LogOf(err))
	}
	t.Cleanup(func() { _ = r.Close() })
	if err := r.Scopes()["s"].Set([]guard.Member{member(t, cgroup)[0]}); err != nil {
		t.Fatal(err)
	}
	return r
}

// sees is what the program read so far.
func sees(t *testing.T, r *Revision) (s readByProgram) {
	t.Helper()
	body, err := r.Maps[".bss"].LookupBytes(uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := binary.Read(bytes.NewReader(body), binary.NativeEndian, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// afterOneCall is what a program of the object registers read at one call of work of a binary.
func afterOneCall(t *testing.T, kind, name, path string) readByProgram {
	t.Helper()
	cgroup := tasks.Cgroup(t, "skep-registers")
	at := v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: path, Symbol: "work"}}
	r := registersOf(t, kind, name, cgroup, at)
	x, err := link.OpenExecutable(path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := x.Uprobe("work", r.Programs[plan.InScope(plan.Loads(v1alpha1.Identity{}, name, at)[0].Instance, "s")], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	tasks.Into(t, exec.CommandContext(t.Context(), path), cgroup, (*exec.Cmd).Run)
	return sees(t, r)
}

// TestANamespaceReadsTheRegistersOfItsTaskAlone runs every function of the object registers as a
// uprobe. As programs of the cluster, most of those that try read something.
func TestANamespaceReadsTheRegistersOfItsTaskAlone(t *testing.T) {
	const value = 0x7e575
	tasks.Root(t)
	path := passing(t, value)
	for name, c := range map[string]struct {
		// reads says what it may read, fails that it reads nothing as a program of the cluster, too.
		reads, fails bool
	}{
		"reads_register": {reads: true}, "reads_by_offset": {reads: true}, "reads_in_function": {reads: true}, "reads_all": {reads: true},
		"below": {}, "above": {fails: true}, "across_begin": {}, "across_end": {fails: true}, "far_below": {}, "large": {}, "writes_specs": {}, "other_map": {},
		"callback":          {},
		"moved_by_function": {}, "moved_by_loop": {}, "map_value": {}, "number": {fails: true}, "wraps": {fails: true}, "task": {}, "registers_of_task": {},
		"other_path": {}, "other_caller": {}, "altered": {}, "tails": {},
	} {
		for _, kind := range []string{v1alpha1.KindBpfApplication, v1alpha1.KindClusterBpfApplication} {
			t.Run(name+" of a "+kind, func(t *testing.T) {
				s := afterOneCall(t, kind, name, path)
				bound := kind == v1alpha1.KindBpfApplication
				switch read := s.Error == 0; {
				case s.Runs != 1:
					t.Errorf("it ran %d times", s.Runs)
				case read != (c.reads || !bound && !c.fails):
					t.Errorf("it was told %d", s.Error)
				case !read && s.Bytes != [32]byte{}:
					t.Errorf("it failed and read %x", s.Bytes)
				case c.reads && name != "reads_all" && s.first() != value:
					t.Errorf("it read %#x, want %#x", s.first(), value)
				}
			})
		}
	}
}

// TestANamespaceReadsTheArgumentsOfSystemCallsAlone has programs where the argument is the registers
// of the task, and one where it is a file.
func TestANamespaceReadsTheArgumentsOfSystemCallsAlone(t *testing.T) {
	tasks.Root(t)
	kprobe := func(function string) (v1alpha1.Attachment, func(*ebpf.Program) (io.Closer, error)) {
		return v1alpha1.Attachment{Hook: "kprobe", Functions: &v1alpha1.Functions{Names: []string{function}}}, func(p *ebpf.Program) (io.Closer, error) {
			return link.Kprobe(function, p, nil)
		}
	}
	ofCall, onCall := kprobe("__x64_sys_getpgid")
	ofFile, onFile := kprobe("vfs_open")
	for sentence, c := range map[string]struct {
		kind, program, call string
		at                  v1alpha1.Attachment
		attach              func(*ebpf.Program) (io.Closer, error)
		reads               bool
	}{
		"a system call": {v1alpha1.KindBpfApplication, "argument", "getpgid", ofCall, onCall, true},
		"every system call": {
			v1alpha1.KindBpfApplication, "enters", "getpgid", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter"}, onSysEnter, true,
		},
		"another function":                 {v1alpha1.KindBpfApplication, "argument", "open", ofFile, onFile, false},
		"another function, by the cluster": {v1alpha1.KindClusterBpfApplication, "argument", "open", ofFile, onFile, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			cgroup := tasks.Cgroup(t, "skep-registers")
			task := tasks.Start(t, cgroup)
			r := registersOf(t, c.kind, c.program, cgroup, c.at)
			l, err := c.attach(r.Programs[plan.InScope(plan.Loads(v1alpha1.Identity{}, c.program, c.at)[0].Instance, "s")])
			if err != nil {
				t.Skipf("SKIPPED: this kernel does not attach it: %v", err)
			}
			defer func() { _ = l.Close() }()
			task.Does(c.call, 10)
			s := sees(t, r)
			if read := s.Error == 0; s.Runs < 10 || read != c.reads || !read && s.Bytes != [32]byte{} {
				t.Errorf("it ran %d times, was told %d and read %#x", s.Runs, s.Error, s.first())
			}
			if c.call == "getpgid" && s.first() != uint64(task.PID()) {
				t.Errorf("it read %d, want the process that the call named, %d", s.first(), task.PID())
			}
		})
	}
}
