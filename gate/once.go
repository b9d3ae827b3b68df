package gate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
)

// fitOnce denies programs that run once, in the agent, and that it could not answer for. The kernel
// does not end a run, not even when the process is killed: the run has to end by itself, as far as
// the verifier walked it. And it has the agent's descriptors and rights.
func fitOnce(r *denials, programs []v1alpha1.Program, facts bytecode.Facts) {
	named, some := map[string]string{}, false
	for i, p := range programs {
		for _, a := range p.Attach {
			if h, _ := hook.Lookup(a.Hook); h.RunsOnce() {
				named[p.Name], some = fmt.Sprintf("spec.programs[%d]", i), true
			}
		}
	}
	for _, p := range facts.Programs {
		at, isNamed := named[p.Name]
		if !isNamed {
			// It may be tail called.
			if !some || !callsTails(facts) || p.Type != ebpf.Syscall.String() {
				continue
			}
			at = "spec.bytecode.image"
		}
		if by := slices.DeleteFunc(slices.Clone(p.Helpers), func(name string) bool { return !isOneOf("bpf_sys_bpf", "bpf_sys_close")(name) }); len(by) > 0 {
			r.add("inspect/once", at, "take the calls out of the program",
				"program %s makes system calls with the descriptors and rights of the agent, so that it may load what nobody has read, and change what others have (%s)", p.Name, strings.Join(by, ", "))
		}
		if len(p.RepeatsBy) > 0 {
			r.add("inspect/once", at, "write loops whose number of rounds the verifier knows, or fill maps by maps.NAME.contents",
				"program %s repeats by what the verifier walks once, and nothing ends its run: it would keep the agent from loading others' programs (%s)", p.Name, strings.Join(p.RepeatsBy, ", "))
		}
	}
}
