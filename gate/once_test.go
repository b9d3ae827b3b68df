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
	other := func(p bytecode.Program) bytecode.Program {
		p = runs(p)
		p.Name = "other"
		return p
	}
	array := bytecode.Map{Name: "calls", Type: "ProgramArray"}
	for sentence, c := range map[string]struct {
		hook  string
		facts bytecode.Facts
		path  string
		says  string
	}{
		"fills a map": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{Helpers: []string{"bpf_map_update_elem"}})}}, "", ""},
		"loads others": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{Helpers: []string{"bpf_map_update_elem", "bpf_sys_bpf"}})}},
			"spec.programs[0]", "it may load what nobody has read, and change what others have (bpf_sys_bpf)"},
		"closes what the agent has": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{Helpers: []string{"bpf_sys_close"}})}},
			"spec.programs[0]", "(bpf_sys_close)"},
		"repeats": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{RepeatsBy: []string{"bpf_loop", "may_goto"}})}},
			"spec.programs[0]", "nothing ends its run: it would keep the agent from loading others' programs (bpf_loop, may_goto)"},
		"another repeats that it may call": {"syscall", bytecode.Facts{Maps: []bytecode.Map{array}, Programs: []bytecode.Program{runs(bytecode.Program{}),
			other(bytecode.Program{RepeatsBy: []string{"bpf_loop"}})}}, "spec.bytecode.image", "program other repeats"},
		"another repeats that nobody calls": {"syscall", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{}),
			other(bytecode.Program{RepeatsBy: []string{"bpf_loop"}})}}, "", ""},
		"repeats where it is called by events": {"fentry", bytecode.Facts{Programs: []bytecode.Program{runs(bytecode.Program{RepeatsBy: []string{"bpf_loop"}})}}, "", ""},
	} {
		r := &denials{}
		fitOnce(r, []v1alpha1.Program{{Name: "p", Attach: []v1alpha1.Attachment{{Hook: c.hook}}}}, c.facts)
		switch {
		case c.says == "" && len(r.reasons) > 0:
			t.Errorf("%s: denied by %v", sentence, r.reasons)
		case c.says != "" && (len(r.reasons) != 1 || r.reasons[0].Rule != "inspect/once" || r.reasons[0].Path != c.path || !strings.Contains(r.reasons[0].Message, c.says)):
			t.Errorf("%s: denied by %v, want %s: %q", sentence, r.reasons, c.path, c.says)
		}
	}
}
