package plan

import (
	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// Load is a program that must be loaded so that an attachment can be made.
type Load struct {
	// Instance names what is loaded, and Target the function or tracepoint that it is
	// loaded for: empty where the kernel learns it when the program is attached.
	Instance, Target string
}

// Loads lists what must be loaded of a program for an attachment of its definition.
func Loads(program string, at v1alpha1.Attachment) []Load {
	h, ok := hook.Lookup(at.Hook)
	if !ok || !h.LoadsForTarget() {
		return []Load{{Instance: Instance(program, at.Hook, "")}}
	}
	names := []string{at.Tracepoint}
	if at.Functions != nil {
		names = at.Functions.Names
	}
	var all []Load
	for _, name := range names {
		all = append(all, Load{Instance: Instance(program, at.Hook, name), Target: name})
	}
	return all
}

// Instance names what must be loaded for a program to attach to a hook. A
// function that attaches to two hooks is loaded once where the kernel does not
// tell them apart at load time, and once for each where it does: by expected
// attach type (cgroup hooks) or by target (tp_btf, fentry). Hooks the table lacks
// give the bare name.
func Instance(program, hookName, target string) string {
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
	}
	if h.LoadsForTarget() {
		return program + "@" + hookName + "/" + target
	}
	return program + "@" + hookName
}
