package guard

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/test/harness/need"
)

// TestAnAnswerOnTrafficDropsOrLetsTheNextRun runs programs that return each answer: by one way out or by either of two, and with other
// bits behind those that the kernel reads.
func TestAnAnswerOnTrafficDropsOrLetsTheNextRun(t *testing.T) {
	need.Kernel(t)
	for answer := int32(-2); answer <= 20; answer++ {
		want := ^uint32(0)
		if slices.Contains([]int32{2, 4, 7, 8}, answer) {
			want = 2
		}
		for way, insns := range map[string]asm.Instructions{
			"at the end": {asm.Mov.Imm(asm.R0, answer), asm.Return()},
			"in 32 bits": {asm.LoadImm(asm.R0, 1<<40|int64(uint32(answer)), asm.DWord), asm.Return()},
			"before another": {asm.Mov.Imm(asm.R0, answer), asm.LoadMem(asm.R1, asm.R1, 0, asm.Word),
				{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JEq).SetSource(asm.ImmSource), Dst: asm.R1, Constant: 1000, Offset: 1},
				asm.Return(), asm.Mov.Imm(asm.R0, 1), asm.Return()},
		} {
			t.Run(fmt.Sprintf("%d %s", answer, way), func(t *testing.T) {
				spec := &ebpf.ProgramSpec{Name: "answers", Type: ebpf.SchedCLS, License: "GPL", Instructions: insns}
				if err := BoundAnswers(spec); err != nil {
					t.Fatal(err)
				}
				p, err := ebpf.NewProgram(spec)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = p.Close() })
				if got, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil || got != want {
					t.Errorf("%d becomes %d, want %d: %v", answer, int32(got), int32(want), err)
				}
			})
		}
	}
}
