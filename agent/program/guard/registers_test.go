package guard

import (
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/test/harness/tasks"
)

// reading is a program that reads eight bytes at an address in R3, and returns what it is told. With
// types, its function has type information, as those of compilers have.
func reading(types bool, address ...asm.Instruction) *ebpf.ProgramSpec {
	insns := append(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1).WithSymbol("reads")}, address...)
	insns = append(insns, asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, -8), asm.Mov.Imm(asm.R2, 8), asm.FnProbeReadKernel.Call(), asm.Return())
	if types {
		insns[0] = btf.WithFuncMetadata(insns[0].WithSource(asm.Comment("reads")), function("reads", btf.GlobalFunc))
	}
	return &ebpf.ProgramSpec{Name: "reads", Type: ebpf.RawTracepoint, License: "GPL", Instructions: insns}
}

// registersOfTask are instructions that put the address of the registers of the task into R3.
func registersOfTask(offset int32) []asm.Instruction {
	return []asm.Instruction{
		asm.FnGetCurrentTaskBtf.Call(), asm.Mov.Reg(asm.R1, asm.R0), asm.FnTaskPtRegs.Call(), asm.Mov.Reg(asm.R3, asm.R0), asm.Add.Imm(asm.R3, offset),
	}
}

// ran runs a program in this task and returns what it does.
func ran(t testing.TB, spec *ebpf.ProgramSpec) int32 {
	t.Helper()
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer func() { _ = p.Close() }()
	told, err := p.Run(&ebpf.RunOptions{Context: struct{ A [2]uint64 }{}})
	if err != nil {
		t.Fatal(err)
	}
	return int32(told)
}

func TestReadsAreBoundToTheRegistersOfTheTask(t *testing.T) {
	tasks.Root(t)
	// Fewer than there are: after the last one the kernel's own stack ends, where no read finds memory.
	const size = 64
	for _, types := range []bool{true, false} {
		for sentence, c := range map[string]struct {
			address []asm.Instruction
			reads   bool
		}{
			"the first register":       {registersOfTask(0), true},
			"the last register":        {registersOfTask(size - 8), true},
			"a byte before the first":  {registersOfTask(-1), false},
			"a byte after the last":    {registersOfTask(size - 7), false},
			"the registers' own end":   {registersOfTask(size), false},
			"the context":              {[]asm.Instruction{asm.Mov.Reg(asm.R3, asm.R6)}, false},
			"the end of all addresses": {[]asm.Instruction{asm.Mov.Imm(asm.R3, -1)}, false},
			"no address":               {[]asm.Instruction{asm.Mov.Imm(asm.R3, 0)}, false},
			"the program's stack": {
				[]asm.Instruction{asm.StoreMem(asm.RFP, -16, asm.R6, asm.DWord), asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -16)}, false,
			},
		} {
			spec := reading(types, c.address...)
			if err := boundReads(spec, size); err != nil {
				t.Fatal(err)
			}
			if told := ran(t, spec); (told == 0) != c.reads || told > 0 {
				t.Errorf("%s, with types %v: it is told %d", sentence, types, told)
			}
		}
	}
	whole := reading(true, registersOfTask(registersSize()[runtime.GOARCH]-8)...)
	if err := BoundReads(whole); err != nil {
		t.Fatal(err)
	}
	if told := ran(t, whole); told != 0 {
		t.Errorf("it cannot read the last register: %d", told)
	}
	if told := ran(t, reading(true, asm.Mov.Reg(asm.R3, asm.R6))); told != 0 {
		t.Errorf("without a bound it cannot read its context: %d", told)
	}
}

// TestRegistersHaveTheSizeThatTheKernelSays compares with the kernel's type of them.
func TestRegistersHaveTheSizeThatTheKernelSays(t *testing.T) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	var registers *btf.Struct
	if err := types.TypeByName("pt_regs", &registers); err != nil {
		t.Fatal(err)
	}
	if has := registersSize()[runtime.GOARCH]; uint32(has) > registers.Size || runtime.GOARCH == "amd64" && uint32(has) != registers.Size {
		t.Errorf("struct pt_regs has %d bytes, and %d are known", registers.Size, has)
	}
}

func TestWhatBoundReadsLeaves(t *testing.T) {
	spec := &ebpf.ProgramSpec{Name: "p", Instructions: asm.Instructions{asm.FnProbeReadUser.Call().WithSymbol("p"), asm.Return()}}
	if err := BoundReads(spec); err != nil || len(spec.Instructions) != 2 || !spec.Instructions[0].IsBuiltinCall() {
		t.Errorf("a program that reads nothing is another one: %v %v", spec.Instructions, err)
	}
	named := reading(false)
	named.Instructions = append(named.Instructions, asm.Return().WithSymbol(boundedRead))
	if err := BoundReads(named); err == nil || !strings.Contains(err.Error(), "rename it in the object") {
		t.Errorf("a function with the name of the bound: %v", err)
	}
	before := reading(false)
	first := before.Instructions
	if err := BoundReads(before); err != nil || !first[4].IsBuiltinCall() {
		t.Errorf("instructions that others may have are altered: %v, %v", first, err)
	}
}

// BenchmarkBoundReads measures one call with the bound, beside one without it.
func BenchmarkBoundReads(b *testing.B) {
	tasks.Root(b)
	read := func(bound bool) *ebpf.Program {
		spec := &ebpf.ProgramSpec{Name: "once", Instructions: append(asm.Instructions{asm.Mov.Imm(asm.R0, 0)}, append(registersOfTask(0),
			asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, -8), asm.Mov.Imm(asm.R2, 8), asm.FnProbeReadKernel.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return())...)}
		once(b, spec.Instructions, false, "GPL")
		if bound {
			if err := BoundReads(spec); err != nil {
				b.Fatal(err)
			}
		}
		return looped(b, spec.Instructions, nil)
	}
	bare, bounded := read(false), read(true)
	free, held := math.Inf(1), math.Inf(1)
	for b.Loop() {
		free, held = min(free, run(b, bare)), min(held, run(b, bounded))
	}
	b.ReportMetric(held-free, "ns/bound")
	b.ReportMetric(0, "ns/op")
}
