package inventory_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/fixture/userbinary"
)

func TestListTellsOfSkepsLinksWhatTheKernelDoesNot(t *testing.T) {
	self, err := os.Executable()
	must(t, err)
	binary := plan.Target{Binary: self, Offset: 0x1000}
	for sentence, tc := range map[string]struct {
		at      plan.Attachment
		object  string
		want    inventory.Place
		foreign bool
	}{
		"the binary of a uprobe": {plan.Attachment{Hook: "uprobe", Target: binary}, "uprobe_count",
			inventory.Place{Hook: "uprobe", Target: self + "+0x1000"}, false},
		"that a uprobe is one of a return": {plan.Attachment{Hook: "uretprobe", Target: binary}, "uretprobe_count",
			inventory.Place{Hook: "uretprobe", Target: self + "+0x1000"}, false},
		"the category of a tracepoint": {plan.Attachment{Hook: "tracepoint", Target: plan.Target{Tracepoint: "syscalls/sys_enter_getpgid"}}, "tracepoint_count",
			inventory.Place{Hook: "tracepoint", Target: "syscalls/sys_enter_getpgid"}, false},
		"nothing where the kernel tells": {plan.Attachment{Hook: "raw_tp", Target: plan.Target{Tracepoint: "sched_process_exec"}}, "raw_tp_count",
			inventory.Place{Hook: "raw_tp", Target: "sched_process_exec"}, false},
		"nothing of another's, whatever lies beside it": {plan.Attachment{Hook: "tracepoint", Target: plan.Target{Tracepoint: "syscalls/sys_enter_getpgid"}},
			"tracepoint_count",
			inventory.Place{Hook: "tracepoint", Target: "sys_enter_getpgid"}, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			h := newHost(t)
			managed := filepath.Join(h.pins, "skep")
			store, err := pins.OpenStore(managed)
			must(t, err)
			t.Cleanup(func() { must(t, store.Close()) })
			tc.at.Program = "f"
			l, err := attach.To(attach.Request{Attachment: tc.at, Program: only(t, load(t, tc.object))})
			must(t, err)
			t.Cleanup(func() { must(t, l.Close()) })
			pinned, err := store.PinLink("uid", tc.at, 0, l)
			must(t, err)
			if tc.foreign {
				aside := filepath.Join(filepath.Dir(pinned.Path), "theirs")
				must(t, os.Rename(pinned.Path, aside))
				must(t, os.Rename(pinned.Path+"+at", aside+"+at"))
			}
			if got := placeOf(t, l.(link.Link), inventory.Options{BPFFS: h.pins}); !older(got) {
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("place (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestAPerfEventIsNamedByTheKernelAndInFullByTheText(t *testing.T) {
	h := newHost(t)
	managed := filepath.Join(h.pins, "skep")
	store, err := pins.OpenStore(managed)
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.PerfEvent, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	must(t, err)
	t.Cleanup(func() { must(t, program.Close()) })
	at := plan.Attachment{Program: "f", Hook: "perf_event", Target: plan.Target{Event: "page-faults", Period: 1_000_000_000}}
	l, err := attach.To(attach.Request{Attachment: at, Program: program})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	check := func(target string) {
		t.Helper()
		if got := placeOf(t, l.(link.Link), inventory.Options{BPFFS: h.pins}); !older(got) && got != (inventory.Place{Hook: "perf_event", Target: target}) {
			t.Errorf("place is %+v, want perf_event %s", got, target)
		}
	}
	check("page-faults")
	_, err = store.PinLink("uid", at, 0, l)
	must(t, err)
	check("page-faults every 1000000000 (CPU 0)")
}

// older tells of a link that nobody tells about: kernels before 6.6 do not.
func older(p inventory.Place) bool { return p == inventory.Place{} }

func placeOf(t *testing.T, l link.Link, o inventory.Options) inventory.Place {
	t.Helper()
	info, err := l.Info()
	must(t, err)
	return find(t, list(t, o).Links, uint32(info.ID), linkID).Place
}

func TestATextThatContradictsTheKernelIsNotBelieved(t *testing.T) {
	h := newHost(t)
	managed := filepath.Join(h.pins, "skep")
	store, err := pins.OpenStore(managed)
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	at := plan.Attachment{Program: "f", Hook: "raw_tp", Target: plan.Target{Tracepoint: "sched_process_exec"}}
	l, err := attach.To(attach.Request{Attachment: at, Program: only(t, load(t, "raw_tp_count"))})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	says := plan.Attachment{Program: "f", Hook: "uprobe", Target: plan.Target{Binary: "/bin/false"}}
	_, err = store.PinLink("uid", says, 0, l)
	must(t, err)
	if got := placeOf(t, l.(link.Link), inventory.Options{BPFFS: h.pins}); strings.Contains(got.Target, "false") {
		t.Errorf("place is %+v", got)
	}
}

func TestListTellsOfALinkOnManyFunctionsWhichTheyAre(t *testing.T) {
	h := newHost(t)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	store, err := pins.OpenStore(filepath.Join(h.pins, "skep"))
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	path := filepath.Join(t.TempDir(), "binary")
	must(t, os.WriteFile(path, userbinary.Make([]userbinary.Function{{Name: "one"}, {Name: "two"}}, userbinary.Options{}), 0o755))
	at := plan.Attachment{Program: "f", Hook: "uretprobe.multi", Target: plan.Target{Binary: path, Symbols: "* !one"}}
	l, err := attach.To(attach.Request{Attachment: at, Program: p})
	if lacks := new(attach.LackingError); errors.As(err, &lacks) && lacks.Older() {
		t.Skip("SKIPPED:", lacks)
	}
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	if got := placeOf(t, l.(link.Link), inventory.Options{BPFFS: h.pins}); got.Hook != "uprobe.multi" || !strings.HasSuffix(got.Target, "1 places") {
		t.Errorf("without a pin it is on %+v", got)
	}
	_, err = store.PinLink("uid", at, 0, l)
	must(t, err)
	if got, want := placeOf(t, l.(link.Link), inventory.Options{BPFFS: h.pins}), (inventory.Place{Hook: at.Hook, Target: path + ":* !one"}); got != want {
		t.Errorf("it is on %+v, want %+v", got, want)
	}
}

// TestAKprobeIsNamedInFullByTheText attaches to the return of a system call, and to many
// functions at once.
func TestAKprobeIsNamedInFullByTheText(t *testing.T) {
	for _, name := range []string{"kretsyscall", "kprobe.multi"} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			row, _ := hook.Lookup(name)
			if lacks := new(attach.LackingError); errors.As(attach.Probe(row), &lacks) {
				t.Skip("SKIPPED:", lacks)
			}
			store, err := pins.OpenStore(filepath.Join(h.pins, "skep"))
			must(t, err)
			t.Cleanup(func() { must(t, store.Close()) })
			p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: row.ProgramType, AttachType: row.AttachType, License: "GPL",
				Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
			must(t, err)
			t.Cleanup(func() { must(t, p.Close()) })
			at := plan.Attachment{Program: "f", Hook: name, Target: plan.Target{Function: "getpgid"}}
			var l pins.Held
			if row.AttachesAtOnce() {
				at.Function, at.FunctionsID = "security_task_getp*", "0123456789abcdef"
				l, err = link.KprobeMulti(p, link.KprobeMultiOptions{Symbols: []string{"security_task_getpgid"}})
			} else {
				l, err = attach.To(attach.Request{Attachment: at, Program: p})
			}
			must(t, err)
			t.Cleanup(func() { must(t, l.Close()) })
			_, err = store.PinLink("uid", at, 0, l)
			must(t, err)
			if got, want := placeOf(t, l.(link.Link), inventory.Options{BPFFS: h.pins}), (inventory.Place{Hook: name, Target: at.Target.String()}); got != want {
				t.Errorf("it is on %+v, want %+v", got, want)
			}
		})
	}
}
