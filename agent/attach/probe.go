package attach

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/hook"
)

// Probe reports whether this process can attach programs to a hook of this
// kernel, by loading one and letting it go again. Nil means that it can. The
// error is or wraps a *LackingError where the kernel does not have the hook, a
// *rights.Error where this process lacks a capability for it, and neither where
// it cannot be told. A hook whose row is not Attachable is asked for its program
// type only.
func Probe(h hook.Hook) error {
	if missing := rights.Check(append(rights.ToLoad(h.ProgramType), toAttach(h)...)); missing != nil {
		// What takes no more than loading tells whether there is a hook to attach to.
		if rights.Check(rights.ToLoad(h.ProgramType)) == nil && errors.Is(try(h), ebpf.ErrNotSupported) {
			return lacking(h, nil)
		}
		return fmt.Errorf("try hook %s: %w", h.Name, missing)
	}
	err := try(h)
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return lacking(h, err)
	case errors.Is(err, unix.EPERM) && h.TakesFunctions():
		if rights.Confined() {
			return fmt.Errorf("try hook %s: %w", h.Name, rights.Explain(err, nil))
		}
		lacks := lacking(h, err)
		lacks.Forbidden = true
		return lacks
	case err != nil:
		return fmt.Errorf("try hook %s: %w", h.Name, rights.ExplainLoad(err, rights.ToLoad(h.ProgramType)))
	}
	return nil
}

// toAttach are the capabilities that attaching takes besides those for loading.
func toAttach(h hook.Hook) []rights.Capability {
	switch h.Shape {
	case hook.UserBinary:
		// perf_uprobe_event_init of kernel/events/core.c asks for no less, and
		// bpf_uprobe_multi_link_attach of kernel/trace/bpf_trace.c for nothing.
		if h.AttachType == ebpf.AttachNone {
			return []rights.Capability{rights.SysAdmin}
		}
	case hook.KernelFunction:
		// perf_event_open asks for it where the sysctl perf_event_paranoid is above 2, as
		// Debian has it. Links to many functions and tracing programs take none.
		if h.ProgramType == ebpf.Kprobe && h.AttachType == ebpf.AttachNone {
			return []rights.Capability{rights.SysAdmin}
		}
	case hook.PerfEvent:
		// perf_event_open asks for it where the sysctl perf_event_paranoid is above 0.
		return []rights.Capability{rights.Perfmon}
	case hook.Cgroup:
		// Loading a cgroup_skb program takes none (bpf_prog_attach_check_attach_type
		// of kernel/bpf/syscall.c).
		return []rights.Capability{rights.NetAdmin}
	}
	return nil
}

// tryTyped loads a program for something that every kernel with the hook has.
func tryTyped(h hook.Hook, target string) error {
	p, err := trivial(h, target)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, btf.ErrNotFound) {
		return errors.Join(ebpf.ErrNotSupported, err)
	}
	if err != nil {
		return err
	}
	return p.Close()
}
