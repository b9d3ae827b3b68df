package plan

import (
	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/hook"
)

// Instance names what must be loaded for a program to attach to a hook. A
// function that attaches to two hooks is loaded once where the kernel does not
// tell them apart at load time, and once for each where it does: by expected
// attach type (cgroup hooks) or by target (tp_btf). Hooks the table lacks give
// the bare name.
func Instance(program, hookName, tracepoint string) string {
	h, ok := hook.Lookup(hookName)
	if !ok {
		return program
	}
	switch h.ProgramType {
	case ebpf.XDP, ebpf.SchedCLS, ebpf.TracePoint, ebpf.RawTracepoint, ebpf.RawTracepointWritable, ebpf.SkLookup, ebpf.SockOps, ebpf.PerfEvent:
		return program
	case ebpf.Kprobe:
		if h.AttachType == ebpf.AttachNone {
			return program
		}
	case ebpf.Tracing:
		if h.Shape == hook.Tracepoint {
			return program + "@" + hookName + "/" + tracepoint
		}
	}
	return program + "@" + hookName
}
