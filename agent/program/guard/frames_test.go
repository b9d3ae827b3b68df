package guard

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/test/harness/tasks"
)

// moved is an instruction that CO-RE changes when it is loaded.
func moved(ins asm.Instruction) asm.Instruction {
	return btf.WithCORERelocationMetadata(ins, &btf.CORERelocation{})
}

func TestWhatFunctionsUseOfTheStackIsFound(t *testing.T) {
	at := func(r asm.Register, n int32) []asm.Instruction {
		return []asm.Instruction{asm.Mov.Reg(r, asm.RFP), asm.Add.Imm(r, n)}
	}
	back := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JNE).SetSource(asm.ImmSource), Dst: asm.R0, Offset: -2}
	body := func(parts ...[]asm.Instruction) asm.Instructions {
		insns := append(slices.Concat(parts...), asm.Return())
		insns[0] = insns[0].WithSymbol("main")
		return insns
	}
	callee := func(insns ...asm.Instruction) []asm.Instruction {
		insns[0] = insns[0].WithSymbol("callee")
		return append([]asm.Instruction{asm.Instruction{
			OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall, Constant: -1,
		}.WithReference("callee"),
			asm.Return()}, insns...)
	}
	for sentence, c := range map[string]struct {
		insns asm.Instructions
		want  []int
	}{
		"nothing":                                {body([]asm.Instruction{asm.Mov.Imm(asm.R0, 0)}), []int{0}},
		"a store":                                {body([]asm.Instruction{asm.StoreMem(asm.RFP, -12, asm.R1, asm.Word)}), []int{16}},
		"an address":                             {body(at(asm.R2, -24)), []int{24}},
		"the same register twice":                {body(at(asm.R2, -24), at(asm.R2, -8)), []int{24}},
		"steps":                                  {body(at(asm.R2, -24), []asm.Instruction{asm.Add.Imm(asm.R2, -8), asm.Sub.Imm(asm.R2, 8)}), []int{40}},
		"an access from a lower address":         {body(at(asm.R2, -24), []asm.Instruction{asm.LoadMem(asm.R0, asm.R2, -8, asm.Byte)}), []int{32}},
		"an address and a number":                {body(at(asm.R2, -24), []asm.Instruction{asm.Add.Reg(asm.R2, asm.R1)}), []int{512}},
		"a number and an address":                {body([]asm.Instruction{asm.Mov.Imm(asm.R2, -24), asm.Add.Reg(asm.R2, asm.RFP)}), []int{512}},
		"less a number":                          {body(at(asm.R2, -24), []asm.Instruction{asm.Sub.Reg(asm.R2, asm.R1)}), []int{512}},
		"steps of a loop":                        {body(at(asm.R2, -8), []asm.Instruction{asm.Add.Imm(asm.R2, -8), back}), []int{512}},
		"an address that a load moves":           {body([]asm.Instruction{asm.Mov.Reg(asm.R2, asm.RFP), moved(asm.Add.Imm(asm.R2, -24))}), []int{512}},
		"an address that a load moves downwards": {body([]asm.Instruction{asm.Mov.Reg(asm.R2, asm.RFP), moved(asm.Sub.Imm(asm.R2, 24))}), []int{512}},
		"a store that a load moves":              {body([]asm.Instruction{moved(asm.StoreMem(asm.RFP, -8, asm.R1, asm.Word))}), []int{512}},
		"a load that a load moves":               {body([]asm.Instruction{moved(asm.LoadMem(asm.R1, asm.RFP, -8, asm.Word))}), []int{512}},
		"an operation that a load moves":         {body([]asm.Instruction{moved(asm.AddAtomic.Mem(asm.RFP, asm.R1, asm.DWord, -8))}), []int{512}},
		"what a load moves elsewhere": {
			body([]asm.Instruction{moved(asm.LoadMem(asm.R1, asm.R1, 8, asm.Word)), moved(asm.Add.Imm(asm.R1, -24))}), []int{0},
		},
		"an argument that a load moves": {body(at(asm.R1, -24), callee(moved(asm.LoadMem(asm.R0, asm.R1, 0, asm.Word)), asm.Return())), []int{512, 0}},
		"numbers alone":                 {body([]asm.Instruction{asm.Add.Reg(asm.R1, asm.R2), asm.Add.Imm(asm.R1, -64)}), []int{0}},
		"an address by way of the stack": {body(at(asm.R2, -24), []asm.Instruction{asm.StoreMem(asm.RFP, -8, asm.R2, asm.DWord),
			asm.LoadMem(asm.R3, asm.RFP, -8, asm.DWord), asm.Add.Imm(asm.R3, -8)}), []int{512}},
		"a function goes up from its argument": {body(at(asm.R1, -24), callee(asm.Add.Imm(asm.R1, 8), asm.Return())), []int{24, 0}},
		"a function goes below its argument":   {body(at(asm.R1, -24), callee(asm.Add.Imm(asm.R1, -8), asm.Return())), []int{512, 0}},
		"a function goes below a number":       {body(at(asm.R2, -24), callee(asm.Add.Imm(asm.R1, -8), asm.Return())), []int{24, 0}},
	} {
		if got := depths(c.insns); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", sentence, got, c.want)
		}
	}
}

func TestACallOfAPlaceIsNoFunction(t *testing.T) {
	call := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall, Constant: 3}
	spec := &ebpf.ProgramSpec{Name: "p", Instructions: asm.Instructions{call.WithSymbol("p"), asm.Return()}}
	if err := ClearFrames(spec); err == nil || !strings.Contains(err.Error(), "compile the object with its symbols") {
		t.Errorf("a function may begin after the zeroes: %v", err)
	}
}

// BenchmarkClearFrames measures what a call costs more if a frame is cleared.
func BenchmarkClearFrames(b *testing.B) {
	tasks.Root(b)
	for _, size := range []int16{64, frameSize} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			uses := func(cleared bool) *ebpf.Program {
				spec := &ebpf.ProgramSpec{Name: "once", Instructions: asm.Instructions{
					asm.Mov.Imm(asm.R0, 0), asm.StoreMem(asm.RFP, -size, asm.R0, asm.DWord), asm.Return(),
				}}
				once(b, spec.Instructions, false, "GPL")
				if cleared {
					if err := ClearFrames(spec); err != nil {
						b.Fatal(err)
					}
				}
				return looped(b, spec.Instructions, nil)
			}
			bare, cleared := uses(false), uses(true)
			free, held := math.Inf(1), math.Inf(1)
			for b.Loop() {
				free, held = min(free, run(b, bare)), min(held, run(b, cleared))
			}
			b.ReportMetric(held-free, "ns/frame")
			b.ReportMetric(0, "ns/op")
		})
	}
}
