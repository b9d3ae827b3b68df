package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/hook"
)

func tracepoint(_ hook.Hook, r Request) (kernel.Held, error) {
	group, name, ok := strings.Cut(r.Attachment.Tracepoint, "/")
	if !ok || group == "" || name == "" {
		return nil, fmt.Errorf("tracepoint %q is not category/name, such as syscalls/sys_enter_execve", r.Attachment.Tracepoint)
	}
	l, err := link.Tracepoint(group, name, r.Program, nil)
	if err != nil && !tracefsMounted() {
		return nil, fmt.Errorf("tracefs is not mounted: run mount -t tracefs tracefs /sys/kernel/tracing, and start Skep again: %w", err)
	}
	return l, missing(err)
}

func rawTracepoint(h hook.Hook, r Request) (kernel.Held, error) {
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: r.Attachment.Tracepoint, Program: r.Program})
	if h.ProgramType == ebpf.RawTracepointWritable && errors.Is(err, unix.EINVAL) {
		// __bpf_probe_register of kernel/trace/bpf_trace.c compares what the program accesses.
		return nil, lackingPart(h, fmt.Sprintf("lets no program write to tracepoint %s, or fewer bytes than this one accesses; name a writable tracepoint, such as bpf_test_finish",
			r.Attachment.Tracepoint), err)
	}
	return l, missing(err)
}

// CheckTracepoint fails with ErrTarget where the kernel is known to lack a tracepoint.
func CheckTracepoint(h hook.Hook, name string) error {
	if h.Name != "tracepoint" || !tracefsMounted() {
		return nil
	}
	for _, dir := range tracefsEvents {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("%w: the kernel has no tracepoint %s", ErrTarget, name)
}

// tracefsEvents are where tracefs shows tracepoints.
var tracefsEvents = []string{"/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"}

// tracefsMounted reports whether the kernel's tracepoints are there, be it that they may
// not be seen.
func tracefsMounted() bool {
	for _, dir := range tracefsEvents {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// tracing attaches where the program was loaded for: its target is in it.
func tracing(h hook.Hook, r Request) (kernel.Held, error) {
	l, err := link.AttachTracing(link.TracingOptions{Program: r.Program, AttachType: h.AttachType})
	if errors.Is(err, unix.EBUSY) && h.TakesFunctions() && r.Host.Functions != nil {
		// A function that begins with no place for ftrace (bpf_arch_text_poke of arch/x86/net/bpf_jit_comp.c).
		if untraced := r.Host.Functions.Explain("", r.Attachment.Function); untraced != nil {
			return nil, fmt.Errorf("%w: %w", ErrTarget, untraced)
		}
	}
	return l, err
}

// missing marks an error that says there is no such tracepoint or file.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrTarget, err)
	}
	return err
}
