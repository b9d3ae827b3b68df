package loader

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// branching has more branches one after the other than the verifier keeps, behind the first instruction.
func branching(insns asm.Instructions) asm.Instructions {
	out := asm.Instructions{insns[0], asm.FnGetPrandomU32.Call()}
	for i := range int32(8300) {
		out = append(out, asm.JEq.Imm(asm.R0, i, fmt.Sprintf("branch%d", i+1)).WithSymbol(fmt.Sprintf("branch%d", i)), asm.Mov.Imm(asm.R1, 0))
	}
	return append(append(out, asm.Mov.Imm(asm.R1, 0).WithSymbol("branch8300")), insns[1:]...)
}

// TestATooComplexProgramIsRejectedWithTheVerifiersWords, which the library drops.
func TestATooComplexProgramIsRejectedWithTheVerifiersWords(t *testing.T) {
	need.Kernel(t)
	cluster := v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}
	for object, of := range map[string]struct{ name, hook string }{
		"tp_btf_count": {"tp_btf_count", "tp_btf"}, "cgroup_bind4": {"cgroup_bind4", "cgroup/bind4"}, "iter_task": {"iter_task", "iter"},
		"kprobe_count": {"kprobe_count", "kprobe"}, "xdp_maps": {"xdp_maps", "xdp"}, "xdp_core": {"xdp_core", "xdp"},
	} {
		t.Run(object, func(t *testing.T) {
			p, err := PrepareToLoad(opened(t, intent.Payload{Application: cluster, Programs: program(of.name, of.hook, "")}), programs.Object(object), btf.NewCache())
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range p.Spec.Programs {
				spec.Instructions = branching(spec.Instructions)
			}
			_, _, err = Load(p, nil, nil, nil)
			refused := new(LoadError)
			if !errors.As(err, &refused) {
				t.Fatalf("Load = %v", err)
			}
			if !strings.Contains(refused.Log, "jumps is too complex") {
				t.Errorf("the log is %q", refused.Log)
			}
			for _, want := range []string{"jumps is too complex", of.name, "bpf_loop"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "LogSizeStart") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error = %q", err)
			}
		})
	}
}
