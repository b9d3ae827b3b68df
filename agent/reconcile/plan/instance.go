package plan

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// Load is a program that must be loaded so that an attachment can be made.
type Load struct {
	// Instance names what is loaded, and Target the function or tracepoint that it is
	// loaded for: empty where the kernel learns it when the program is attached.
	Instance, Target string
	// Scope names the scope whose guard is put before the program, so that it runs for the
	// tasks of chosen pods alone; empty where it runs for all.
	Scope string
}

// Scope names the scope of an attachment of an application in pods, where tasks of others reach its
// hook. Those that choose the same pods have the same scope, and share its maps within a revision. It
// is empty where no guard is needed.
func Scope(of v1alpha1.Identity, at v1alpha1.Attachment) string {
	h, ok := hook.Lookup(at.Hook)
	if !ok || at.Pods == nil || !h.IsGuarded(of.IsNamespaced()) {
		return ""
	}
	body, err := json.Marshal(at.Pods)
	if err != nil {
		return "pods"
	}
	return fmt.Sprintf("%x", sha256.Sum256(body))[:16]
}

// Loads lists what must be loaded of an application's program for an attachment of its definition.
func Loads(of v1alpha1.Identity, program string, at v1alpha1.Attachment) []Load {
	h, ok := hook.Lookup(at.Hook)
	if !ok || !h.LoadsForTarget() {
		return []Load{{Instance: InstanceOf(of, program, at, ""), Scope: Scope(of, at)}}
	}
	names := []string{at.Tracepoint}
	if at.Functions != nil {
		names = at.Functions.Names
	}
	var all []Load
	for _, name := range names {
		all = append(all, Load{Instance: InstanceOf(of, program, at, name), Target: name, Scope: Scope(of, at)})
	}
	return all
}

// Bounded ends the names of instances on traffic of a namespace, whose answers are bounded, and on sockops, which keep the callbacks of
// others. Former agents did not do that, and gave them bare names: after an upgrade, they are loaded once more.
const Bounded = "@bounded"

// InstanceOf names what must be loaded of an application's program for an attachment to a target.
func InstanceOf(of v1alpha1.Identity, program string, at v1alpha1.Attachment, target string) string {
	instance := Instance(program, at.Hook, target)
	if h, _ := hook.Lookup(at.Hook); of.IsNamespaced() && (h.ProgramType == ebpf.SchedCLS || h.ProgramType == ebpf.SockOps) {
		instance += Bounded
	}
	return InScope(instance, Scope(of, at))
}

// FunctionOf is the function that an instance is loaded of.
func FunctionOf(instance string) string {
	function, _, _ := strings.Cut(instance, "@")
	return function
}

// InScope names an instance with the guard of a scope before it. That without a guard, and
// those of other scopes, are loaded apart.
func InScope(instance, scope string) string {
	if scope == "" {
		return instance
	}
	return instance + "@scope/" + scope
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
