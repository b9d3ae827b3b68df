package gate

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
)

func TestWhatRunsOnceEndsByItselfAndMakesNoSystemCalls(t *testing.T) {
	runs := func(p bytecode.Program) bytecode.Program {
		p.Name, p.Type = "p", "Syscall"
		return p
	}
	for sentence, c := range map[string]struct {
		hook  string
		facts bytecode.Facts
		path  string
		says  string
	}{
		"fills a map": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{Helpers: []string{"bpf_map_update_elem"}})}}, "", ""},
		"loads others": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{Helpers: []string{"bpf_map_update_elem", "bpf_sys_bpf"}})}},
			"spec.programs[0]", "it may load what nobody has read, and change what others have (bpf_sys_bpf)"},
		"opens types of modules in the agent": {"syscall", bytecode.Facts{
			Programs: []bytecode.Program{runs(bytecode.Program{Helpers: []string{"bpf_btf_find_by_name_kind"}})},
		},
			"spec.programs[0]", "(bpf_btf_find_by_name_kind)"},
		"closes what the agent has": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{Helpers: []string{"bpf_sys_close"}})}},
			"spec.programs[0]", "(bpf_sys_close)"},
		"repeats": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{RepeatsBy: []string{"bpf_loop", "may_goto"}})}},
			"spec.programs[0]", "nothing ends its run: it would keep the agent from loading others' programs (bpf_loop, may_goto)"},
		"goes on with another program": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{Helpers: []string{"bpf_tail_call"}})}},
			"spec.programs[0]", "(bpf_tail_call)"},
		"waits for a process": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{Helpers: []string{"bpf_copy_from_user_task"}})}},
			"spec.programs[0]", "which may never come, and nothing ends its run (bpf_copy_from_user_task)"},
		"waits for a process by a kfunc": {"syscall", bytecode.Facts{
			Programs: []bytecode.Program{runs(bytecode.Program{Kfuncs: []string{"bpf_copy_from_user_task_str"}})},
		},
			"spec.programs[0]", "(bpf_copy_from_user_task_str)"},
		"reads memory of the agent": {
			"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{Helpers: []string{"bpf_copy_from_user"}})}}, "", "",
		},
		"ends the agent": {"syscall", bytecode.Facts{
			Programs: []bytecode.Program{runs(bytecode.Program{Helpers: []string{"bpf_probe_write_user", "bpf_send_signal"}})},
		},
			"spec.programs[0]", "and that is the agent (bpf_probe_write_user, bpf_send_signal)"},
		"calls what is not known": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{UnknownHelpers: []int64{-1, 300}})}},
			"spec.programs[0]", "calls helpers that this version of Skep does not know, so that nobody can tell how long it runs and for whom (-1 300)"},
		"another repeats that nobody calls": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{}),
			{Name: "other", Type: "Syscall", RepeatsBy: []string{"bpf_loop"}}}}, "", ""},
		"repeats where it is called by events": {
			"fentry", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{RepeatsBy: []string{"bpf_loop"}})}}, "", "",
		},
	} {
		r := &denials{}
		fitOnce(r, []v1alpha1.Program{{Name: "p", Attach: []v1alpha1.Attachment{{Hook: c.hook}}}}, c.facts)
		switch {
		case c.says == "" && len(r.reasons) > 0:
			t.Errorf("%s: denied by %v", sentence, r.reasons)
		case c.says != "" && (len(r.reasons) != 1 || r.reasons[0].Rule != "inspect/once" || r.reasons[0].Path != c.path ||
			!strings.Contains(r.reasons[0].Message, c.says)):
			t.Errorf("%s: denied by %v, want %s: %q", sentence, r.reasons, c.path, c.says)
		}
	}
}
