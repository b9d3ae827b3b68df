package cgrouplsm_test

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/program/cgrouplsm"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/harness/events"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/tasks"
)

//go:generate go run ../../../test/fixture/programs/compile testdata testdata

//go:embed testdata/lsm_cgroup.o
var object []byte

func TestMain(m *testing.M) { tasks.Main(m) }

// needLSM skips the test where the kernel takes or runs no program of an LSM hook.
func needLSM(t *testing.T) {
	t.Helper()
	// Tasks connect to it.
	if err := events.LoopbackUp(); err != nil {
		t.Fatal(err)
	}
	h, _ := hook.Lookup("lsm_cgroup")
	lacks := new(attach.LackingError)
	if err := attach.Probe(h); errors.As(err, &lacks) {
		t.Skip("SKIPPED:", lacks)
	} else if err != nil {
		t.Fatal(err)
	}
}

// prepared is the object with its maps in the kernel. The variables are those of the object.
func prepared(t *testing.T, variables map[string]int32) (*ebpf.CollectionSpec, map[string]*ebpf.Map) {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range variables {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Fatal(err)
		}
	}
	alone := spec.Copy()
	clear(alone.Programs)
	loaded, err := ebpf.NewCollection(alone)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(loaded.Close)
	return spec, loaded.Maps
}

// attached loads a program and attaches it to a cgroup.
func attached(t *testing.T, cgroup, name string, spec *ebpf.CollectionSpec, all map[string]*ebpf.Map) {
	t.Helper()
	program, err := cgrouplsm.Load(spec.Programs[name], all, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachLSMCgroup, Program: program})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
}

func TestAProgramDecidesForTheTasksOfItsCgroupAlone(t *testing.T) {
	tasks.Root(t)
	needLSM(t)
	for sentence, c := range map[string]struct {
		variables map[string]int32
		allowed   bool
	}{
		"another family is refused":         {map[string]int32{"refused": unix.AF_INET6}, true},
		"the family is refused":             {map[string]int32{"refused": unix.AF_INET}, false},
		"the family is refused by an error": {map[string]int32{"refused": unix.AF_INET, "error": -int32(unix.EAFNOSUPPORT)}, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			a, b := tasks.Cgroup(t, "skep-a"), tasks.Cgroup(t, "skep-b")
			inside, outside := tasks.Start(t, a), tasks.Start(t, b)
			spec, all := prepared(t, c.variables)
			attached(t, a, "refuses", spec, all)
			if !outside.Can("connect") {
				t.Error("a task of another cgroup makes no socket")
			}
			if inside.Can("connect") != c.allowed {
				t.Errorf("a task of the cgroup makes a socket: %v", !c.allowed)
			}
			var calls uint64
			if err := all["calls"].Lookup(int32(unix.AF_INET), &calls); err != nil || calls != 1 {
				t.Errorf("it was called %d times, %v", calls, err)
			}
			var process uint32
			if err := all[".bss"].Lookup(uint32(0), &process); err != nil || int(process) != inside.PID() {
				t.Errorf("it read process %d of the task %d, %v", process, inside.PID(), err)
			}
		})
	}
}

func TestAProgramCallsFunctionsOfTheKernel(t *testing.T) {
	tasks.Root(t)
	needLSM(t)
	h, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.TypeByName("bpf_rcu_read_lock", new(*btf.Func)); err != nil {
		t.Skip("SKIPPED: the kernel has no such function:", err)
	}
	dir := tasks.Cgroup(t, "skep-a")
	inside := tasks.Start(t, dir)
	spec, all := prepared(t, nil)
	attached(t, dir, "calls_kernel", spec, all)
	inside.Does("connect", 3)
	var calls uint64
	if err := all["calls"].Lookup(int32(unix.AF_INET), &calls); err != nil || calls != 3 {
		t.Errorf("it was called %d times, %v", calls, err)
	}
}

func TestWhatTheKernelRejectsHasItsLog(t *testing.T) {
	need.Kernel(t)
	needLSM(t)
	spec, all := prepared(t, nil)
	_, err := cgrouplsm.Load(spec.Programs["returns_more"], all, nil)
	rejection := new(ebpf.VerifierError)
	if !errors.As(err, &rejection) || !errors.Is(err, unix.EINVAL) || !strings.Contains(strings.Join(rejection.Log, "\n"), "R0") {
		t.Errorf("the error is %v", err)
	}
	if want := "load returns_more for lsm_cgroup/socket_create: invalid argument: "; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("the error is %q, want %q first", err, want)
	}
}

func TestWhatCannotBePutInIsSaid(t *testing.T) {
	need.Kernel(t)
	spec, all := prepared(t, nil)
	for name, want := range map[string]string{
		"reads_config":  "load reads_config: a program of hook lsm_cgroup cannot use variables of the kernel's configuration (__kconfig)",
		"reads_address": "load reads_address: a program of hook lsm_cgroup cannot use addresses of the kernel (bpf_prog_fops)",
		"calls_nothing": "load calls_nothing: find function bpf_no_such_function of the kernel",
		"on_no_hook":    "load on_no_hook: find LSM hook no_such_hook",
	} {
		_, err := cgrouplsm.Load(spec.Programs[name], all, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%s) = %v, want %q", name, err, want)
		}
		if missing := slices.Contains([]string{"calls_nothing", "on_no_hook"}, name); missing != errors.Is(err, btf.ErrNotFound) {
			t.Errorf("Load(%s) = %v, of type not found: %v", name, err, !missing)
		}
	}
	if _, err := cgrouplsm.Load(spec.Programs["refuses"], nil, nil); err == nil {
		t.Error("a program is loaded without its maps")
	}
	foreign := spec.Programs["refuses"].Copy()
	foreign.ByteOrder = binary.BigEndian
	if spec.ByteOrder == binary.BigEndian {
		foreign.ByteOrder = binary.LittleEndian
	}
	if _, err := cgrouplsm.Load(foreign, all, nil); err == nil || !strings.Contains(err.Error(), "byte order") {
		t.Errorf("a program for other processors is loaded, or the error is %v", err)
	}
	if _, err := cgrouplsm.Load(&ebpf.ProgramSpec{Name: "empty", AttachTo: "socket_create"}, nil, nil); err == nil {
		t.Error("a program without instructions is loaded")
	}
}
