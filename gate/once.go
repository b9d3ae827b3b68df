package gate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
)

// fitOnce denies programs that run once, in the agent, and that it could not answer for. The kernel
// does not end a run, not even when the process is killed: the run has to end by itself, as far as
// the verifier walked it. And it has the agent's descriptors and rights, and is the agent's doing.
func fitOnce(r *denials, programs []v1alpha1.Program, facts bytecode.Facts) {
	for i, p := range programs {
		runsOnce := func(a v1alpha1.Attachment) bool { h, _ := hook.Lookup(a.Hook); return h.RunsOnce() }
		if fact, ok := facts.Program(p.Name); ok && slices.ContainsFunc(p.Attach, runsOnce) {
			fitRun(r, fmt.Sprintf("spec.programs[%d]", i), fact)
		}
	}
}

// fitRun denies what a program may not do in the agent.
func fitRun(r *denials, at string, p bytecode.Program) {
	for _, c := range []struct {
		does, fix string
		is        func(name string) bool
	}{
		{"makes system calls with the descriptors and rights of the agent, so that it may load what nobody has read, and change what others have",
			"take the calls out of the program", isOneOf("bpf_sys_bpf", "bpf_sys_close", "bpf_btf_find_by_name_kind", "hid_bpf_attach_prog")},
		{"repeats by what the verifier walks once, and nothing ends its run: it would keep the agent from loading others' programs",
			"write loops whose number of rounds the verifier knows, or fill maps by maps.NAME.contents",
			func(name string) bool { return slices.Contains(p.RepeatsBy, name) }},
		// The verifier walks each program of a prog array apart, and kernels before 6.12 count tail calls anew in each function.
		{"goes on with another program, of which the verifier does not know that it ends with this one's loops", "call a function of the object",
			isOneOf("bpf_tail_call")},
		{"waits for the memory of another process, which may never come, and nothing ends its run", "read it by a program that is attached",
			func(name string) bool { return strings.HasPrefix(name, "bpf_copy_from_user_task") }},
		{"does to the current process what it does, and that is the agent", "take the calls out of the program, or do so by a program that is attached",
			func(name string) bool {
				return name == "bpf_probe_write_user" || strings.HasPrefix(name, "bpf_send_signal")
			}},
	} {
		if by := slices.DeleteFunc(slices.Concat(p.Helpers, p.Kfuncs, p.RepeatsBy), func(name string) bool { return !c.is(name) }); len(by) > 0 {
			slices.Sort(by)
			r.add("inspect/once", at, c.fix, "program %s %s (%s)", p.Name, c.does, strings.Join(slices.Compact(by), ", "))
		}
	}
	if len(p.UnknownHelpers) > 0 {
		r.add("inspect/once", at, "take the calls out of the program, or update Skep",
			"program %s calls helpers that this version of Skep does not know, so that nobody can tell how long it runs and for whom (%s)",
			p.Name, strings.Trim(fmt.Sprint(p.UnknownHelpers), "[]"))
	}
}

func isOneOf(names ...string) func(string) bool {
	return func(name string) bool { return slices.Contains(names, name) }
}
