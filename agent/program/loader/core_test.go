package loader

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// onThisKernel relocates programs, whatever they do.
func onThisKernel() step {
	return relocateFor(btf.NewCache(), func(*objectfile.Object, []string) error { return nil })
}

func TestARejectionNamesWhatTheKernelHasNot(t *testing.T) {
	need.Kernel(t)
	p, err := prepare(opened(t, intent.Payload{Programs: program("raw_tp_missing", "raw_tp", "sys_enter")}), programs.Object("raw_tp_missing"), plan.Loads,
		onThisKernel())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err = Load(p, nil, nil, nil); err == nil {
		t.Fatal("it was loaded")
	}
	if !strings.Contains(err.Error(), "the program reads task_struct.inside.skep_nope, which this kernel has not") {
		t.Error(err)
	}
}

func TestARejectionSaysThatNodesAreUnknown(t *testing.T) {
	need.Kernel(t)
	p, err := Prepare(opened(t, intent.Payload{Programs: program("tcx_tree", "tcx/ingress", "")}), programs.Object("tcx_tree"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err = Load(p, nil, nil, nil); err == nil {
		t.Fatal("it was loaded: the library knows nodes now, and the explanation can go")
	}
	if known := LogOf(err); strings.Contains(known, "has no valid bpf_spin_lock") != strings.Contains(err.Error(), "which nodes its lists and trees hold") {
		t.Error(err)
	}
}
