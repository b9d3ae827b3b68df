package build_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestAProgramThatDoesMoreThanItsIntentSaysIsNotLoaded has a program that reads a task only after it
// was relocated: its intent has no such fact, then has it, and then has it no more.
func TestAProgramThatDoesMoreThanItsIntentSaysIsNotLoaded(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	hidden := func(reads ...string) intent.Payload {
		p := w.Intent("hidden", "tp_btf_core_hidden", v1alpha1.Program{
			Name: "tp_btf_core_hidden", Attach: []v1alpha1.Attachment{{Hook: "tp_btf", Tracepoint: "sched_process_exec"}},
		})
		p.Facts = &intent.Facts{Calls: []string{"bpf_get_current_pid_tgid", "bpf_map_lookup_elem"}}
		if len(reads) > 0 {
			p.Facts.Reads = map[string][]string{"tp_btf_core_hidden": reads}
		}
		return p
	}
	const want = "program tp_btf_core_hidden denied by load/facts: relocated for the kernel of this node it reads memory of the kernel by a load"
	if err := w.Accept(a, hidden()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Settled = %v, want %q", err, want)
	}
	if s := a.Status(); len(s) != 1 || s[0].Revision != "" {
		t.Errorf("Status = %+v", s)
	}
	if err := w.Accept(a, hidden("a load")); err != nil {
		t.Fatal(err)
	}
	loaded, _ := world.One(t, a)
	if err := w.Accept(a, hidden()); err != nil {
		t.Errorf("what runs does not keep running: %v", err)
	}
	if still, _ := world.One(t, a); still.ID != loaded.ID {
		t.Errorf("program %d runs in the place of %d", still.ID, loaded.ID)
	}
}

// TestAChainIsRelocated has a chain of two programs, of which one has relocations.
func TestAChainIsRelocated(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	world.Veth(t, "fx0", "fx1")
	for _, name := range []string{"xdp_core", "xdp_pass"} {
		if err := w.Accept(a, w.Intent(name, name, v1alpha1.Program{Name: name, Attach: world.On("xdp", "fx0")})); err != nil {
			t.Fatal(err)
		}
	}
	if chains, err := a.Chains(); err != nil || len(chains) != 1 || len(chains[0].Members) != 2 {
		t.Errorf("chains %+v, %v", chains, err)
	}
}
