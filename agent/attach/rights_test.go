package attach_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/harness/drop"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/running"
)

func TestARefusedAttachmentNamesTheMissingCapability(t *testing.T) {
	need.Kernel(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for sentence, tc := range map[string]struct {
		lost   []int
		object string
		at     plan.Attachment
		want   string
	}{
		"a uprobe": {[]int{unix.CAP_SYS_ADMIN}, "uprobe_count",
			plan.Attachment{Hook: "uprobe", Target: plan.Target{Binary: self, Offset: 0x1000}}, "lacks CAP_SYS_ADMIN; grant it"},
		"a tracepoint": {[]int{unix.CAP_SYS_ADMIN, unix.CAP_PERFMON}, "tracepoint_count",
			plan.Attachment{Hook: "tracepoint", Target: plan.Target{Tracepoint: "syscalls/sys_enter_getpgid"}}, "lacks CAP_PERFMON; grant it"},
	} {
		t.Run(sentence, func(t *testing.T) {
			spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programs.Object(tc.object)))
			if err != nil {
				t.Fatal(err)
			}
			coll, err := ebpf.NewCollection(spec)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(coll.Close)
			r := attach.Request{Attachment: tc.at, Program: coll.Programs[tc.object]}
			try := func() error {
				l, err := attach.To(r)
				if err != nil {
					return err
				}
				return l.Close()
			}
			if err := try(); err != nil {
				t.Fatalf("with every right: %v", err)
			}
			drop.Capabilities(t, func() { err = try() }, tc.lost...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("To = %v, want %q", err, tc.want)
			}
		})
	}
}

// TestWhatEachHookTakes loads a program and attaches it, in a network namespace of the
// test's own.
func TestWhatEachHookTakes(t *testing.T) {
	need.Kernel(t)
	tracing, network := []int{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN}, []int{unix.CAP_SYS_ADMIN, unix.CAP_PERFMON}
	for name, tc := range map[string]struct {
		enough, less []int
		missing      string
		target       plan.Target
	}{
		"raw_tp.w":       {tracing, []int{unix.CAP_SYS_ADMIN, unix.CAP_PERFMON}, "CAP_PERFMON", plan.Target{Tracepoint: "bpf_test_finish"}},
		"perf_event":     {tracing, []int{unix.CAP_SYS_ADMIN, unix.CAP_PERFMON}, "CAP_PERFMON", plan.Target{Event: "cpu-clock", Frequency: 1}},
		"flow_dissector": {network, []int{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN}, "CAP_NET_ADMIN", plan.Target{NetworkNamespace: "/proc/thread-self/ns/net"}},
		"kprobe":         {[]int{unix.CAP_NET_ADMIN}, []int{unix.CAP_SYS_ADMIN}, "CAP_SYS_ADMIN", plan.Target{Function: "security_task_getpgid"}},
		"fentry":         {tracing, []int{unix.CAP_SYS_ADMIN, unix.CAP_PERFMON}, "CAP_PERFMON", plan.Target{Function: "security_task_getpgid"}},
		"lsm":            {tracing, []int{unix.CAP_SYS_ADMIN, unix.CAP_PERFMON}, "CAP_PERFMON", plan.Target{Function: "task_getpgid"}},
		"netfilter": {network, []int{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN}, "CAP_NET_ADMIN", plan.Target{
			Netfilter: v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalIn"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := row(t, name)
			if lacks := new(attach.LackingError); errors.As(attach.Probe(h), &lacks) && (lacks.Older() || running.MayLack(t, name)) {
				t.Skip("SKIPPED:", lacks)
			}
			leaks.NetworkNamespace(t)
			try := func() error {
				spec := &ebpf.ProgramSpec{Type: h.ProgramType, AttachType: h.AttachType, License: "GPL",
					Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}}
				if h.LoadsForTarget() {
					spec.AttachTo, spec.Instructions[0] = tc.target.Function, asm.Mov.Imm(asm.R0, 0)
				}
				p, err := ebpf.NewProgram(spec)
				if err != nil {
					return rights.ExplainLoad(err, rights.ToLoad(h.ProgramType))
				}
				l, err := attach.To(attach.Request{Attachment: plan.Attachment{Program: "f", Hook: name, Target: tc.target}, Program: p})
				if err == nil {
					err = l.Close()
				}
				return errors.Join(err, p.Close())
			}
			var err, probed error
			drop.Capabilities(t, func() { err, probed = try(), attach.Probe(h) }, tc.enough...)
			switch {
			case name == "perf_event" && err != nil:
				// Kernels of Debian deny it so where kernel.perf_event_paranoid is 3.
				for _, denied := range []error{err, probed} {
					if denied == nil ||
						!strings.Contains(denied.Error(), "where kernel.perf_event_paranoid is above 2: permission denied: this process lacks CAP_SYS_ADMIN; grant it") ||
						!errors.As(denied, new(*rights.Error)) {
						t.Errorf("without CAP_SYS_ADMIN: %v", denied)
					}
				}
			case err != nil || probed != nil:
				t.Errorf("with enough rights: %v, and the probe %v", err, probed)
			}
			if drop.Capabilities(t, func() { err = try() }, tc.less...); err == nil || !strings.Contains(err.Error(), "lacks "+tc.missing) {
				t.Errorf("with less: %v, want %s to be missing", err, tc.missing)
			}
		})
	}
}

func TestManyFunctionsTakeNoCapabilityToAttachTo(t *testing.T) {
	need.Kernel(t)
	if lacks := new(attach.LackingError); errors.As(attach.Probe(row(t, "uprobe.multi")), &lacks) && lacks.Older() {
		t.Skip("SKIPPED:", lacks)
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	path := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(path, userbinary.Make([]userbinary.Function{{Name: "one"}, {Name: "two"}}, userbinary.Options{}), 0o755); err != nil {
		t.Fatal(err)
	}
	at := plan.Attachment{Hook: "uprobe.multi", Target: plan.Target{Binary: path, Symbols: "*"}}
	drop.Capabilities(t, func() {
		var l io.Closer
		if l, err = attach.To(attach.Request{Attachment: at, Program: p}); err == nil {
			err = l.Close()
		}
	}, unix.CAP_SYS_ADMIN)
	if err != nil {
		t.Error(err)
	}
}

// TestWhatASeccompFilterMayDenyIsNotSaidToBeForbidden probes on a thread with a filter that
// allows everything, where the kernel forbids a hook.
func TestWhatASeccompFilterMayDenyIsNotSaidToBeForbidden(t *testing.T) {
	h, lacks := row(t, "fentry"), new(attach.LackingError)
	if os.Geteuid() != 0 || !errors.As(attach.Probe(h), &lacks) || !lacks.Forbidden {
		t.Skip("SKIPPED: needs root, and a kernel that forbids fentry")
	}
	denied := make(chan error)
	go func() {
		// The thread ends with the goroutine, and the filter with it.
		runtime.LockOSThread()
		allow := unix.SockFilter{Code: unix.BPF_RET, K: 0x7fff0000}
		program := unix.SockFprog{Len: 1, Filter: &allow}
		err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
		if err == nil {
			err = attach.Probe(h)
		}
		denied <- err
	}()
	err := <-denied
	if errors.As(err, &lacks) && lacks.Forbidden || !errors.As(err, new(*rights.Error)) ||
		!strings.Contains(err.Error(), "or the seccomp filter of this process (Seccomp: 2 in /proc/") {
		t.Errorf("Probe = %v", err)
	}
}
