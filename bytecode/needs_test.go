package bytecode

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/hook"
)

// features are the needs of one program, each with its kernel.
func features(n needs) map[string]string {
	m := map[string]string{}
	for _, need := range n {
		m[need.Feature] = need.Kernel
	}
	return m
}

func TestInstructionNeeds(t *testing.T) {
	raw := func(class asm.Class, op asm.JumpOp) asm.OpCode { return asm.OpCode(class).SetJumpOp(op) }
	for name, test := range map[string]struct {
		ins  asm.Instruction
		want map[string]string
	}{
		"a move":        {ins: asm.Mov.Imm(asm.R0, 0)},
		"a return":      {ins: asm.Return()},
		"a helper":      {ins: asm.FnMapLookupElem.Call()},
		"a jump ahead":  {ins: asm.Instruction{OpCode: raw(asm.JumpClass, asm.Ja), Offset: 1}},
		"a jump back":   {ins: asm.Instruction{OpCode: raw(asm.JumpClass, asm.JEq), Offset: -2}, want: map[string]string{"bounded loops": "5.3"}},
		"a 32-bit jump": {ins: asm.Instruction{OpCode: raw(asm.Jump32Class, asm.JEq), Offset: 1}, want: map[string]string{"32-bit jumps (-mcpu=v3)": "5.1"}},
		"a long jump":   {ins: asm.Instruction{OpCode: raw(asm.Jump32Class, asm.Ja), Constant: 1}, want: map[string]string{"long jumps (-mcpu=v4)": "6.6"}},
		"may_goto":      {ins: asm.Instruction{OpCode: raw(asm.JumpClass, asm.JCOND), Offset: -1}, want: map[string]string{"may_goto": "6.9"}},
		"a call of a function": {
			ins:  asm.Instruction{OpCode: raw(asm.JumpClass, asm.Call), Src: asm.PseudoCall, Constant: -1},
			want: map[string]string{"calls between BPF functions": "4.16"},
		},
		"a call of a kfunc": {ins: asm.Instruction{OpCode: raw(asm.JumpClass, asm.Call), Src: asm.PseudoKfuncCall}, want: map[string]string{"kfuncs": "5.13"}},
		"a pointer to a callback": {
			ins:  asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Src: asm.PseudoFunc},
			want: map[string]string{"callbacks": "5.13"},
		},
		"an atomic add":         {ins: asm.AddAtomic.Mem(asm.R1, asm.R2, asm.DWord, 0)},
		"an add with a result":  {ins: asm.FetchAdd.Mem(asm.R1, asm.R2, asm.DWord, 0), want: map[string]string{"atomic operations beyond add": "5.12"}},
		"an exchange":           {ins: asm.Xchg.Mem(asm.R1, asm.R2, asm.DWord, 0), want: map[string]string{"atomic operations beyond add": "5.12"}},
		"an acquire":            {ins: asm.LoadAcquire(asm.R1, asm.R2, asm.DWord, 0), want: map[string]string{"load-acquire and store-release": "6.15"}},
		"a sign-extending load": {ins: asm.LoadMemSX(asm.R1, asm.R2, 0, asm.Byte), want: map[string]string{"sign-extending loads (-mcpu=v4)": "6.6"}},
		"a signed division":     {ins: asm.SDiv.Imm(asm.R1, 3), want: map[string]string{"signed division and moves (-mcpu=v4)": "6.6"}},
		"an unsigned division":  {ins: asm.Div.Imm(asm.R1, 3)},
		"a byte swap":           {ins: asm.BSwap(asm.R1, asm.Half), want: map[string]string{"unconditional byte swaps (-mcpu=v4)": "6.6"}},
		"a host to network":     {ins: asm.HostTo(asm.BE, asm.R1, asm.Half)},
	} {
		t.Run(name, func(t *testing.T) {
			var n needs
			n.instruction(&test.ins, "p")
			if test.want == nil {
				test.want = map[string]string{}
			}
			if diff := cmp.Diff(test.want, features(n)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestProgramNeeds(t *testing.T) {
	row, _ := hook.Lookup("uprobe")
	spec := ebpf.ProgramSpec{Name: "p", Type: ebpf.Kprobe, Flags: flagSleepable}
	for range 4097 {
		spec.Instructions = append(spec.Instructions, asm.Mov.Imm(asm.R0, 0))
	}
	want := map[string]string{
		"program type Kprobe": "4.1", "hook uprobe": row.MinKernel, "sleepable programs": "5.10",
		"sleepable uprobes": "6.0", "more than 4096 instructions": "5.2",
	}
	if diff := cmp.Diff(want, features(programNeeds(&spec, row))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	spec = ebpf.ProgramSpec{Name: "p", Type: ebpf.XDP, Flags: flagXDPFrags}
	want = map[string]string{"program type XDP": "4.8", "XDP fragments": "5.18"}
	if diff := cmp.Diff(want, features(programNeeds(&spec, hook.Hook{}))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMapNeeds(t *testing.T) {
	for name, test := range map[string]struct {
		name string
		spec ebpf.MapSpec
		want map[string]string
	}{
		"a hash":          {"m", ebpf.MapSpec{Type: ebpf.Hash}, map[string]string{"map type Hash": "3.19"}},
		"an array to map": {"m", ebpf.MapSpec{Type: ebpf.Array, Flags: 1 << 10}, map[string]string{"map type Array": "3.19", "map flag BPF_F_MMAPABLE": "5.5"}},
		"constants": {".rodata", ebpf.MapSpec{Type: ebpf.Array, Flags: 1 << 7}, map[string]string{
			"map type Array": "3.19", "map flag BPF_F_RDONLY_PROG": "5.2", "global variables": "5.2",
		}},
		"a type nobody knows":  {"m", ebpf.MapSpec{Type: 77}, map[string]string{}},
		"an arena":             {"m", ebpf.MapSpec{Type: ebpf.Arena, Flags: 1 << 10}, map[string]string{"map type Arena": "6.9", "map flag BPF_F_MMAPABLE": "5.5"}},
		"a hash of inner maps": {"m", ebpf.MapSpec{Type: ebpf.HashOfMaps, InnerMap: &ebpf.MapSpec{}}, map[string]string{"map type HashOfMaps": "4.12"}},
	} {
		if diff := cmp.Diff(test.want, features(mapNeeds(test.name, &test.spec))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestEveryTypeHasAKernelAndALabel(t *testing.T) {
	for kind := ebpf.SocketFilter; kind <= ebpf.Netfilter; kind++ {
		if kernelTypeLabel(kind.String()) == "" {
			t.Errorf("program type %s has no label", kind)
		}
		if programTypeKernel(kind) == "" {
			t.Errorf("program type %s has no first kernel", kind)
		}
	}
	for kind := ebpf.Hash; kind <= ebpf.Arena; kind++ {
		if len(mapTypeLabels(kind.String())) == 0 {
			t.Errorf("map type %s has no label", kind)
		}
		if mapTypeKernel(kind) == "" {
			t.Errorf("map type %s has no first kernel", kind)
		}
	}
	for _, h := range hook.All() {
		if Older(h.MinKernel, programTypeKernel(h.ProgramType)) {
			t.Errorf("hook %s of %s came before its program type, which is of %s", h.Name, h.MinKernel, programTypeKernel(h.ProgramType))
		}
	}
}

func TestKfuncKernels(t *testing.T) {
	for name, want := range map[string]string{
		"bpf_ct_release": "5.18", "bpf_dynptr_size": "6.5", "bpf_wq_start": "6.10", "bbr_init": "5.13", "bpf_send_signal_task": "6.13",
		"tcp_slow_start": "5.13", "bpf_cpumask_create": "6.3", "no_such": "", "": "", "cpumask_create": "", "bpf_ct": "",
	} {
		if got := kfuncKernel(name); got != want {
			t.Errorf("kfuncKernel(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestLowestKernel(t *testing.T) {
	var n needs
	n.add("5.8", "b", "one")
	n.add("5.10", "z", "two")
	n.add("5.10", "a", "two")
	n.add("5.10", "a", "one")
	n.add("5.10", "a", "one")
	n.add("", "unknown", "one")
	n.add("4.20", "c", "one")
	kernel, reasons := n.lowest()
	want := []KernelNeed{{"5.10", "a", "one"}, {"5.10", "a", "two"}, {"5.10", "z", "two"}}
	if diff := cmp.Diff(want, reasons); diff != "" || kernel != "5.10" {
		t.Errorf("kernel %s, want 5.10; reasons (-want +got):\n%s", kernel, diff)
	}
	if kernel, reasons := (needs{}).lowest(); kernel != firstKernel || len(reasons) != 0 || reasons == nil {
		t.Errorf("nothing needed: %s, %v", kernel, reasons)
	}
	if Older("5.10", "5.9") || !Older("4.20", "5.0") || Older("6.1", "6.1") {
		t.Error("versions are numbers, not strings")
	}
	if Older("6.10-rc1", "6.9") || !Older("6.1.0-13-amd64", "6.2") || Older("6.2.0-13-amd64", "6.2") || !Older("5.14.0-503.el9.x86_64", "5.15") {
		t.Error("what follows a release's major.minor counts")
	}
}
