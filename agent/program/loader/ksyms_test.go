package loader

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/test/corpus"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestVariablesOfTheKernelAreLoadedByTheirTypes(t *testing.T) {
	need.Sys(t)
	body, err := corpus.Objects.ReadFile("testdata/ksym_typed.o")
	if err != nil {
		t.Fatal(err)
	}
	read := func() *objectfile.Object {
		o, err := objectfile.Read(body)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	o := read()
	loads := map[string]int{}
	for _, ins := range o.Spec.Programs["reads_symbols"].Instructions {
		if ins.OpCode.IsDWordLoad() {
			loads[ins.Reference()]++
		}
	}
	if err := settleKsyms(o); err != nil {
		t.Fatal(err)
	}
	typed, zero := 0, 0
	for _, ins := range o.Spec.Programs["reads_symbols"].Instructions {
		switch {
		case !ins.OpCode.IsDWordLoad() || ins.Reference() != "":
		case ins.Src == pseudoTypeID && ins.Constant > 0:
			typed++
		case ins.Src == asm.R0 && ins.Constant == 0:
			zero++
		}
	}
	if typed != loads["runqueues"]+loads["bpf_prog_active"] || typed == 0 || zero != loads["skep_no_such_queue"] || zero == 0 {
		t.Errorf("%d loads by type and %d of zero, where the object loads %v", typed, zero, loads)
	}
	strong := read()
	strong.TypedKsyms["skep_no_such_queue"] = false
	if err := settleKsyms(strong); err == nil || !strings.Contains(err.Error(), "variable skep_no_such_queue is not in the kernel's type information") {
		t.Errorf("a variable that is needed and not there: %v", err)
	}
}
