package agent_test

import (
	"bytes"
	"debug/elf"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/hook/conformance"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/running"
)

//go:generate go run ../test/fixture/programs/compile testdata testdata

//go:embed testdata/hooks.o
var hooksObject []byte

// target is an attachment to the hook that exists on this machine.
func target(t testing.TB, h hook.Hook) v1alpha1.Attachment {
	t.Helper()
	at := v1alpha1.Attachment{Hook: h.Name}
	switch h.Shape {
	case hook.NetworkDevice:
		at.Interfaces = &v1alpha1.Interfaces{Names: []string{"hk0"}}
	case hook.Cgroup:
		dir := filepath.Join(need.Cgroup(t), "skep-test-"+strings.ReplaceAll(h.Name, "/", "-"))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		at.Cgroup = "/" + filepath.Base(dir)
	case hook.UserBinary:
		if h.InBinary() == hook.InSymbols {
			at.Binary = &v1alpha1.UserBinary{Path: install(t, userbinary.Make(workers(), userbinary.Options{})), Symbols: &v1alpha1.Symbols{Names: []string{"work_*"}}}
			break
		}
		if h.InBinary() == hook.InUSDT {
			at.Binary = &v1alpha1.UserBinary{Path: install(t, userbinary.Make(declaring(), userbinary.Options{})), USDT: &v1alpha1.USDT{Provider: "skep", Name: "one"}}
			break
		}
		body, symbol, offset := probed(t, h.Name == "uretprobe")
		path := filepath.Join(t.TempDir(), "binary")
		if err := os.WriteFile(path, body, 0o755); err != nil {
			t.Fatal(err)
		}
		at.Binary = &v1alpha1.UserBinary{Path: path, Symbol: symbol, Offset: offset}
	case hook.PerfEvent:
		at.PerfEvent = &v1alpha1.PerfEvent{Event: "context-switches", Period: 1, PID: singleThread(t)}
	case hook.NetworkNamespace:
		if h.Name != "sk_lookup" {
			// One of its own: the initial one has this machine's traffic.
			at.NetworkNamespace = namespace(t)
		}
		if h.Name == "netfilter" {
			at.Netfilter = &v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalIn"}
		}
	case hook.Tracepoint:
		at.Tracepoint = map[string]string{"tracepoint": "syscalls/sys_enter_getpgid", "raw_tp.w": "bpf_test_finish"}[h.Name]
		if at.Tracepoint == "" {
			at.Tracepoint = "sys_enter"
		}
	}
	if h.TakesFunctions() {
		at.Functions = &v1alpha1.Functions{Names: []string{"security_task_getpgid"}}
		switch {
		case h.TakesSyscalls():
			at.Functions.Names = []string{"getpgid"}
		case h.AttachesAtOnce():
			at.Functions.Names = []string{"security_task_getp*"}
		case h.Name == "lsm":
			at.Functions.Names = []string{"task_getpgid"}
		case h.Name == "lsm_cgroup":
			at.Functions.Names = []string{"socket_create"}
		}
	}
	return at
}

// probed is a program to copy and probe: a shell at a symbol or, where there is none or
// the function has to return, this test at one of its functions, since it may have no
// symbols.
func probed(t testing.TB, returns bool) (body []byte, symbol string, offset uint64) {
	t.Helper()
	if body, err := os.ReadFile("/bin/bash"); err == nil && !returns {
		return body, "main", 0
	}
	body, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.NewFile(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	address := uint64(reflect.ValueOf(probedFunction).Pointer())
	for _, p := range file.Progs {
		if p.Type == elf.PT_LOAD && p.Vaddr <= address && address-p.Vaddr < p.Filesz {
			return body, "", address - p.Vaddr + p.Off
		}
	}
	t.Fatal("this test is not at the addresses of its file; build it without -buildmode=pie")
	return nil, "", 0
}

// version is an intent for the one attachment; versions differ in a variable.
func (w *world) version(n string, at v1alpha1.Attachment) intent.Payload {
	w.serial++
	return intent.Payload{
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "hooks"},
		UID:         "uid-hooks", Serial: w.serial, ObjectDigest: w.object(hooksObject),
		Variables: versioned(n),
		Programs:  []v1alpha1.Program{{Name: functionFor(at.Hook), Attach: []v1alpha1.Attachment{at}}},
	}
}

// functionFor names the function of hooks.o for a hook.
func functionFor(name string) string {
	return "on_" + strings.NewReplacer("/", "_", ".", "_").Replace(name)
}

// versioned sets the variable by which revisions of hooks.o differ.
func versioned(n string) map[string]apiextensionsv1.JSON {
	return map[string]apiextensionsv1.JSON{"version": {Raw: []byte(n)}}
}

// one is the only link of the only program.
func one(t testing.TB, a *agent.Agent) (agent.ProgramStatus, agent.LinkStatus) {
	t.Helper()
	s := a.Status()
	if len(s) != 1 || len(s[0].Programs) != 1 || len(s[0].Programs[0].Links) != 1 {
		t.Fatalf("Status = %+v", s)
	}
	return s[0].Programs[0], s[0].Programs[0].Links[0]
}

// runsUnder returns the program of a link or filter, or 0 where there is none.
func runsUnder(t testing.TB, l agent.LinkStatus) ebpf.ProgramID {
	t.Helper()
	if l.Filter == "" {
		return runs(t, l.ID)
	}
	for _, f := range filtersOf(t, l.Target, strings.HasSuffix(l.Hook, "egress")) {
		if fmt.Sprintf("clsact pref %d handle %#x", f.Priority, f.Handle) == l.Filter {
			return ebpf.ProgramID(f.Id)
		}
	}
	return 0
}

// filtersOf are the BPF filters of one side of an interface.
func filtersOf(t testing.TB, name string, egress bool) []*netlink.BpfFilter {
	t.Helper()
	device, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	parent := uint32(netlink.HANDLE_MIN_INGRESS)
	if egress {
		parent = netlink.HANDLE_MIN_EGRESS
	}
	all, err := netlink.FilterList(device, parent)
	if err != nil {
		t.Fatal(err)
	}
	var found []*netlink.BpfFilter
	for _, f := range all {
		if one, ok := f.(*netlink.BpfFilter); ok {
			found = append(found, one)
		}
	}
	return found
}

// runs returns the program under the kernel's link, or 0 where there is none.
func runs(t testing.TB, id uint32) ebpf.ProgramID {
	t.Helper()
	l, err := link.NewFromID(link.ID(id))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	info, err := l.Info()
	if err != nil {
		t.Fatal(err)
	}
	return info.Program
}

// lacking returns what the agent is to say where this kernel does not have the hook, else
// nil. A whole kernel that lacks it although the table gives it the hook fails the test.
func lacking(t testing.TB, h hook.Hook) *attach.LackingError {
	t.Helper()
	lacks := new(attach.LackingError)
	if !errors.As(attach.Probe(h), &lacks) {
		return nil
	}
	if !lacks.Older() && !running.MayLack(t, h.Name) {
		t.Fatalf("the table says Linux %s: %v", h.MinKernel, lacks)
	}
	return lacks
}

// needHook skips the test on a kernel that comes before the hook.
func needHook(t testing.TB, name string) {
	t.Helper()
	h, ok := hook.Lookup(name)
	if !ok {
		t.Fatalf("no hook %s", name)
	}
	if lacks := lacking(t, h); lacks != nil {
		t.Skip("SKIPPED:", lacks)
	}
}

// hasTCX reports whether programs of tcx/* are attached by links, and not by filters.
func hasTCX() bool {
	_, err := attach.Order("tcx/ingress", plan.Device{Index: 1}, nil)
	return err == nil
}

// needLink skips the test where the kernel has no link for the hook.
func needLink(t testing.TB, name string) {
	t.Helper()
	needHook(t, name)
	if strings.HasPrefix(name, "tcx/") && !hasTCX() {
		t.Skip("SKIPPED: the kernel has no TCX, and a filter is no link")
	}
}

// TestEveryHookConforms takes each hook the table calls attachable through one
// life: attach, update, drift, restart, unload.
func TestEveryHookConforms(t *testing.T) {
	need.Kernel(t)
	for _, h := range hook.All() {
		if !h.Attachable || h.RunsOnce() {
			continue
		}
		t.Run(h.Name, func(t *testing.T) {
			w := newWorld(t)
			if h.Shape == hook.NetworkDevice {
				pair(t, h, "hk0", "hk1")
			}
			at := target(t, h)
			a, stop := w.start()
			lacks := lacking(t, h)
			err := w.accept(a, w.version("1", at))
			if lacks != nil {
				if err == nil || !strings.Contains(err.Error(), lacks.Error()) {
					t.Fatalf("the agent says %q, not %q", err, lacks)
				}
				conforms(t, h, outcome(lacks))
				t.Skip("SKIPPED:", lacks)
			}
			if err != nil {
				t.Fatal(err)
			}
			program, first := one(t, a)
			if got := runsUnder(t, first); uint32(got) != program.ID || program.ID == 0 {
				t.Fatalf("link %d runs program %d, not %d", first.ID, got, program.ID)
			}
			runsOn(t, a, at, 1)
			updates(t, w, a, h, at)
			runsOn(t, a, at, 2)
			healsPin(t, a)
			healsDetach(t, a)
			_, before := one(t, a)
			stop()
			a, _ = w.start()
			if err := w.accept(a); err != nil {
				t.Fatal(err)
			}
			if _, after := one(t, a); after.ID != before.ID || after.Filter != before.Filter {
				t.Errorf("the restarted agent has %+v and not %+v", after, before)
			}
			runsOn(t, a, at, 2)
			unloadsAll(t, w, a, before)
			if h.Shape == hook.NetworkDevice {
				hasNoQdisc(t, "hk0")
			}
			if !t.Failed() {
				conforms(t, h, conformance.Fires)
			}
		})
	}
}

// updates checks that a new version runs, under the same link where the hook
// says so.
func updates(t *testing.T, w *world, a *agent.Agent, h hook.Hook, at v1alpha1.Attachment) {
	t.Helper()
	oldProgram, old := one(t, a)
	if err := w.accept(a, w.version("2", at)); err != nil {
		t.Fatal(err)
	}
	program, now := one(t, a)
	if program.ID == oldProgram.ID || uint32(runsUnder(t, now)) != program.ID {
		t.Errorf("after the update %+v runs %d; the new program is %d, the old one was %d", now, runsUnder(t, now), program.ID, oldProgram.ID)
	}
	if same := now.ID == old.ID && now.Filter == old.Filter; same != (h.Replace == hook.ByLinkUpdate) {
		t.Errorf("hook replaces by %s, and the link went from %d to %d", h.Replace, old.ID, now.ID)
	}
	until(t, "the old program to go", time.Minute, func() bool {
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(oldProgram.ID))
		if err == nil {
			_ = p.Close()
		}
		return errors.Is(err, fs.ErrNotExist)
	})
}

// healsPin removes the pin by hand and waits for it.
func healsPin(t *testing.T, a *agent.Agent) {
	t.Helper()
	_, l := one(t, a)
	if err := os.Remove(l.Pin); err != nil {
		t.Fatal(err)
	}
	until(t, "the pin to be made again", time.Minute, func() bool {
		_, err := os.Stat(l.Pin)
		return err == nil
	})
	if _, now := one(t, a); now.ID != l.ID {
		t.Errorf("the link went from %d to %d with its pin", l.ID, now.ID)
	}
}

// healsDetach severs the link by hand, where the kernel can. Of netfilter's links, not every
// kernel tells that they are severed.
func healsDetach(t *testing.T, a *agent.Agent) {
	t.Helper()
	program, old := one(t, a)
	if _, err := os.Stat("/sys/module/nfnetlink_hook"); old.Hook == "netfilter" && err != nil {
		return
	}
	if old.Filter != "" {
		f := filtersOf(t, old.Target, strings.HasSuffix(old.Hook, "egress"))[0]
		if err := netlink.FilterDel(f); err != nil {
			t.Fatal(err)
		}
		until(t, "the filter to be made again", time.Minute, func() bool {
			_, now := one(t, a)
			return now.Filter != "" && uint32(runsUnder(t, now)) == program.ID
		})
		return
	}
	l, err := link.NewFromID(link.ID(old.ID))
	if err != nil {
		t.Fatal(err)
	}
	err = l.Detach()
	_ = l.Close()
	if errors.Is(err, link.ErrNotSupported) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the link to be made again", time.Minute, func() bool {
		_, now := one(t, a)
		return now.ID != old.ID && now.ID != 0
	})
	if _, now := one(t, a); uint32(runs(t, now.ID)) != program.ID {
		t.Errorf("the healed link runs %d and not %d", runs(t, now.ID), program.ID)
	}
}

// unloads sends a tombstone and looks for what is left, and for a link.
func unloads(t *testing.T, w *world, a *agent.Agent, id uint32) {
	t.Helper()
	unloadsAll(t, w, a, agent.LinkStatus{ID: id})
}

// unloadsAll does so for a link or filter.
func unloadsAll(t *testing.T, w *world, a *agent.Agent, l agent.LinkStatus) {
	t.Helper()
	w.serial++
	tomb := intent.Payload{Application: a.Status()[0].Application, UID: a.Status()[0].UID, Serial: w.serial, Tombstone: true, Reason: "test"}
	if err := w.accept(a, tomb); err != nil {
		t.Fatal(err)
	}
	until(t, "the link to go", time.Minute, func() bool { return runsUnder(t, l) == 0 })
	w.leavesNothing()
}

// hasNoQdisc fails the test where the interface has a clsact qdisc.
func hasNoQdisc(t testing.TB, name string) {
	t.Helper()
	if got := qdiscOf(t, name); got != "" {
		t.Errorf("%s has a qdisc %s", name, got)
	}
}

// qdiscOf is the kind of the interface's qdisc for filters; empty where it has none.
func qdiscOf(t testing.TB, name string) string {
	t.Helper()
	device, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	all, err := netlink.QdiscList(device)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range all {
		if q.Attrs().Parent == netlink.HANDLE_CLSACT {
			return q.Type()
		}
	}
	return ""
}

// leavesNothing fails the test for every pin there is.
func (w *world) leavesNothing() {
	w.t.Helper()
	err := filepath.WalkDir(w.bpffs, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != w.bpffs {
			w.t.Errorf("left behind: %s", path)
		}
		return err
	})
	if err != nil {
		w.t.Error(err)
	}
}

func TestAnIteratorIsReadByItsPin(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	a, _ := w.start()
	p := w.intent("tasks", "iter_task", v1alpha1.Program{Name: "iter_task", Attach: []v1alpha1.Attachment{{Hook: "iter"}}})
	if err := w.accept(a, p); err != nil {
		t.Fatal(err)
	}
	_, l := one(t, a)
	body, err := os.ReadFile(l.Pin)
	if err != nil {
		t.Fatal(err)
	}
	if me := fmt.Sprintf("\n%d %[1]d\n", os.Getpid()); !strings.Contains("\n"+string(body), me) {
		t.Errorf("the iterator does not list this process, %q: %q", me, body)
	}
}
