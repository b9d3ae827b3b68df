package attach_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/recommended"
)

// TestATracepointSaysWhyItTakesNoProgram: the kernel answers with a number alone.
func TestATracepointSaysWhyItTakesNoProgram(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		hook, tracepoint string
		// reads is the last byte of the context that the program reads 8 bytes up to.
		reads int16
		want  error
		says  string
	}{
		"an argument too many": {
			"raw_tp", "sys_enter", 24, ebpf.ErrNotSupported, "gives tracepoint sys_enter 2 arguments, which is fewer than this program reads",
		},
		"every argument": {"raw_tp", "sys_enter", 16, nil, ""},
		"beyond the record": {
			"tracepoint", "syscalls/sys_enter_getpgid", 72, ebpf.ErrNotSupported, "has a shorter record for tracepoint syscalls/sys_enter_getpgid",
		},
		"the whole record":           {"tracepoint", "syscalls/sys_enter_getpgid", 24, nil, ""},
		"a misspelled raw one":       {"raw_tp", "sys_entr", 8, attach.ErrTarget, "the kernel has no tracepoint sys_entr; near it are sys_enter"},
		"a misspelled one":           {"tracepoint", "syscalls/sys_enter_getpgi", 24, attach.ErrTarget, "near it are syscalls/sys_enter_getpgid"},
		"a misspelled category":      {"tracepoint", "syscall/sys_enter_getpgid", 24, attach.ErrTarget, "near it are syscalls/sys_enter_getpgid"},
		"a system call as a raw one": {"raw_tp", "sys_enter_getpgid", 8, attach.ErrTarget, "the kernel has no tracepoint sys_enter_getpgid; near it are sys_enter"},
	} {
		t.Run(sentence, func(t *testing.T) {
			h, _ := hook.Lookup(c.hook)
			p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: h.ProgramType, License: "GPL", Instructions: asm.Instructions{
				asm.LoadMem(asm.R0, asm.R1, c.reads-8, asm.DWord), asm.Mov.Imm(asm.R0, 0), asm.Return()}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = p.Close() }()
			l, err := attach.To(attach.Request{Program: p, Attachment: plan.Attachment{Program: "f", Hook: c.hook, Target: plan.Target{Tracepoint: c.tracepoint}}})
			if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("To = %v, want %q", err, c.says)
			}
			if err == nil {
				_ = l.Close()
			}
		})
	}
}

// TestARawTracepointIsLookedUp: by all hooks that attach to one.
func TestARawTracepointIsLookedUp(t *testing.T) {
	need.Kernel(t)
	for _, name := range []string{"raw_tp", "raw_tp.w", "tp_btf"} {
		h, _ := hook.Lookup(name)
		if err := attach.CheckTracepoint(h, "sched_switch"); err != nil {
			t.Errorf("%s: sched_switch: %v", name, err)
		}
		if err := attach.CheckTracepoint(h, "sched_swich"); !errors.Is(err, attach.ErrTarget) || !strings.Contains(err.Error(), "near it are sched_switch") {
			t.Errorf("%s: sched_swich: %v", name, err)
		}
	}
}

// withoutTracefs is the environment variable of a process that starts without tracefs.
const withoutTracefs = "SKEP_TEST_WITHOUT_TRACEFS"

// TestTracefsIsFoundOnceItIsMounted: what was not there at the first attempt is not
// remembered. What is remembered is a process's, so it runs in one of its own.
func TestTracefsIsFoundOnceItIsMounted(t *testing.T) {
	need.Kernel(t)
	if os.Getenv(withoutTracefs) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), withoutTracefs+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	const tracefs = "/sys/kernel/tracing"
	for _, dir := range []string{"/sys/kernel/debug/tracing", "/sys/kernel/debug", tracefs} {
		for unix.Unmount(dir, unix.MNT_DETACH) == nil {
		}
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.TracePoint, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	r := attach.Request{Program: p, Attachment: plan.Attachment{Program: "f", Hook: "tracepoint", Target: plan.Target{Tracepoint: "syscalls/sys_enter_getpgid"}}}
	_, err = attach.To(r)
	if err == nil || !strings.Contains(err.Error(), "tracefs is not mounted") {
		t.Fatalf("without tracefs: %v", err)
	}
	recommended.Run(t, err.Error(), "mount -t tracefs tracefs /sys/kernel/tracing")
	l, err := attach.To(r)
	if err != nil {
		t.Fatalf("with tracefs: %v", err)
	}
	_ = l.Close()
}
