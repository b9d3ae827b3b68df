package bytecode

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/hardened"
	"github.com/skep-dev/skep/test/harness/need"
)

// repeated is a kind of program that has the same instructions again and again.
type repeated struct {
	kind ebpf.ProgramType
	// first are before them; the context is in R6, and R7 is a number.
	first, each asm.Instructions
	// rewritten says that the kernel replaces each by several, on some kernel.
	rewritten bool
}

// opcode is an instruction that the assembler has no word for.
func opcode(op uint8, dst, src asm.Register, offset int16, imm int64) asm.Instruction {
	return asm.Instruction{OpCode: asm.OpCode(op), Dst: dst, Src: src, Offset: offset, Constant: imm}
}

func field(dst, src asm.Register, offset int16, size asm.Size) asm.Instructions {
	return asm.Instructions{asm.LoadMem(dst, src, offset, size)}
}

// kinds are those of instructions that the kernel rewrites, and some that it does not, on the maps.
func kinds(t testing.TB) map[string]repeated {
	t.Helper()
	made := map[ebpf.MapType]int{}
	for _, kind := range []ebpf.MapType{ebpf.Array, ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUArray} {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: kind, KeySize: 4, ValueSize: 8, MaxEntries: 4})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		made[kind] = m.FD()
	}
	lookup := func(kind ebpf.MapType) repeated {
		return repeated{ebpf.SchedCLS, asm.Instructions{asm.StoreImm(asm.RFP, -4, 0, asm.Word)}, asm.Instructions{
			asm.LoadMapPtr(asm.R1, made[kind]), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4), asm.FnMapLookupElem.Call(),
		}, true}
	}
	divisor := field(asm.R8, asm.R6, 68, asm.Word)
	one := func(i asm.Instruction) asm.Instructions { return asm.Instructions{i} }
	spilled := asm.Instructions{asm.StoreMem(asm.RFP, -8, asm.R6, asm.DWord)}
	return map[string]repeated{
		"a move":                       {ebpf.SchedCLS, nil, one(asm.Mov.Imm(asm.R7, 1)), false},
		"a division by a constant":     {ebpf.SchedCLS, nil, one(asm.Mod.Imm(asm.R7, 3)), false},
		"mod by a register":            {ebpf.SchedCLS, divisor, one(asm.Mod.Reg(asm.R7, asm.R8)), true},
		"div of 32 bits by a register": {ebpf.SchedCLS, divisor, one(asm.Div.Reg32(asm.R7, asm.R8)), true},
		"signed div by a register":     {ebpf.SchedCLS, divisor, one(asm.SDiv.Reg(asm.R7, asm.R8)), true},
		"signed mod of 32 bits":        {ebpf.SchedCLS, divisor, one(asm.SMod.Reg32(asm.R7, asm.R8)), true},
		"LD_ABS":                       {ebpf.SchedCLS, nil, one(opcode(0x20, 0, 0, 0, 0)), true},
		"LD_IND":                       {ebpf.SchedCLS, asm.Instructions{asm.Mov.Imm(asm.R7, 0)}, one(opcode(0x48, 0, asm.R7, 0, 4)), true},
		"cmpxchg of 32 bits": {ebpf.SchedCLS, asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Mov.Imm(asm.R7, 0), asm.StoreMem(asm.RFP, -8, asm.R7, asm.DWord)},
			asm.Instructions{asm.CmpXchg.Mem(asm.RFP, asm.R7, asm.Word, -8), asm.Mov.Reg(asm.R8, asm.R0)}, true},
		"skb->len":     {ebpf.SchedCLS, nil, field(asm.R7, asm.R6, 0, asm.Word), true},
		"skb->ifindex": {ebpf.SchedCLS, nil, field(asm.R7, asm.R6, 40, asm.Word), true},
		"skb->ifindex, from the stack": {ebpf.SchedCLS, spilled,
			asm.Instructions{asm.LoadMem(asm.R9, asm.RFP, -8, asm.DWord), asm.LoadMem(asm.R7, asm.R9, 40, asm.Word)}, true},
		"a byte of skb->mark":            {ebpf.SchedCLS, nil, field(asm.R7, asm.R6, 9, asm.Byte), true},
		"skb->tstamp":                    {ebpf.SchedCLS, nil, field(asm.R7, asm.R6, 152, asm.DWord), true},
		"a store to skb->tstamp":         {ebpf.SchedCLS, nil, one(asm.StoreMem(asm.R6, 152, asm.R7, asm.DWord)), true},
		"a byte of its own stack":        {ebpf.SchedCLS, asm.Instructions{asm.StoreImm(asm.RFP, -8, 0, asm.Word)}, field(asm.R7, asm.RFP, -8, asm.Byte), false},
		"xdp_md->ingress_ifindex":        {ebpf.XDP, nil, field(asm.R7, asm.R6, 12, asm.Word), true},
		"bpf_sock_ops->srtt_us":          {ebpf.SockOps, nil, field(asm.R7, asm.R6, 96, asm.Word), true},
		"bpf_sock_ops->snd_cwnd":         {ebpf.SockOps, nil, field(asm.R7, asm.R6, 76, asm.Word), true},
		"a look-up in an array":          lookup(ebpf.Array),
		"a look-up in a hash":            lookup(ebpf.Hash),
		"a look-up in an LRU hash":       lookup(ebpf.LRUHash),
		"a look-up in an array per CPU":  lookup(ebpf.PerCPUArray),
		"bpf_jiffies64":                  {ebpf.SchedCLS, nil, one(asm.FnJiffies64.Call()), true},
		"bpf_get_smp_processor_id":       {ebpf.SchedCLS, nil, one(asm.FnGetSmpProcessorId.Call()), true},
		"bpf_get_current_task":           {ebpf.RawTracepoint, nil, one(asm.FnGetCurrentTask.Call()), true},
		"bpf_ktime_get_ns":               {ebpf.SchedCLS, nil, one(asm.FnKtimeGetNs.Call()), false},
		"a register of a raw tracepoint": {ebpf.RawTracepoint, nil, field(asm.R7, asm.R6, 8, asm.DWord), false},
		"may_goto":                       {ebpf.SchedCLS, nil, asm.Instructions{opcode(0xe5, 0, 0, 1, 0), asm.Mov.Imm(asm.R7, 0)}, true},
		"a jump to the next one":         {ebpf.SchedCLS, nil, one(opcode(0x05, 0, 0, 0, 0)), false},
		"a branch that is never taken": {ebpf.SchedCLS, asm.Instructions{asm.Mov.Imm(asm.R9, 0)},
			asm.Instructions{opcode(0x55, asm.R9, 0, 1, 0), opcode(0x05, 0, 0, 1, 0), asm.Mov.Imm(asm.R8, 0)}, false},
	}
}

// program repeats n times.
func (r repeated) program(n int) *ebpf.ProgramSpec {
	insns := append(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R7, 7)}, r.first...)
	for range n {
		insns = append(insns, r.each...)
	}
	return &ebpf.ProgramSpec{Type: r.kind, License: "GPL", Instructions: append(insns, asm.Mov.Imm(asm.R0, 0), asm.Return())}
}

// TestWorkAgreesWithTheKernel: what the kernel makes of a program is no more than is counted, and each
// kind of instruction that it replaces by several is known for one.
func TestWorkAgreesWithTheKernel(t *testing.T) {
	need.Kernel(t)
	const n = 100
	of := func(name string, kind repeated) {
		t.Run(name, func(t *testing.T) {
			spec := kind.program(n)
			w := WorkOf(spec.Type, spec.Instructions)
			if kind.rewritten != (w.Rewrites > n) {
				t.Errorf("%d rewrites of %d are counted, want them: %v", w.Rewrites, n, kind.rewritten)
			}
			if made := translated(t, spec); made > w.Translated {
				t.Errorf("the kernel makes %d instructions, %d are counted", made, w.Translated)
			}
		})
	}
	hardened.JIT(t, false, func() {
		for name, kind := range kinds(t) {
			of(name, kind)
		}
	})
}

// TestBlindedWorkAgreesWithTheKernel: a kernel that blinds constants makes no more of a program than is counted, and
// of instructions with constants more than without.
func TestBlindedWorkAgreesWithTheKernel(t *testing.T) {
	need.Kernel(t)
	const n = 100
	tried := maps.Clone(kinds(t))
	maps.Copy(tried, map[string]repeated{
		"a sum":                      {ebpf.SchedCLS, nil, asm.Instructions{asm.Add.Imm(asm.R7, 1)}, true},
		"a sum of 32 bits":           {ebpf.SchedCLS, nil, asm.Instructions{asm.Add.Imm32(asm.R7, 1)}, true},
		"a negation":                 {ebpf.SchedCLS, nil, asm.Instructions{asm.Neg.Imm(asm.R7, 0)}, false},
		"a copy":                     {ebpf.SchedCLS, nil, asm.Instructions{asm.Mov.Reg(asm.R8, asm.R7)}, false},
		"a number of 64 bits":        {ebpf.SchedCLS, nil, asm.Instructions{asm.LoadImm(asm.R7, 1<<40+1, asm.DWord)}, true},
		"a store of a number":        {ebpf.SchedCLS, nil, asm.Instructions{asm.StoreImm(asm.RFP, -8, 7, asm.DWord)}, true},
		"a jump by a number":         {ebpf.SchedCLS, field(asm.R7, asm.R6, 0, asm.Word), asm.Instructions{opcode(0x55, asm.R7, 0, 0, 7)}, true},
		"a jump by one of 32 bits":   {ebpf.SchedCLS, field(asm.R7, asm.R6, 0, asm.Word), asm.Instructions{opcode(0x56, asm.R7, 0, 0, 7)}, true},
		"a jump by another register": {ebpf.SchedCLS, field(asm.R7, asm.R6, 0, asm.Word), asm.Instructions{opcode(0x5d, asm.R7, asm.R7, 0, 0)}, false},
	})
	plain := map[string]int{}
	hardened.JIT(t, false, func() {
		for name, kind := range tried {
			if p, err := ebpf.NewProgram(kind.program(n)); err == nil {
				_ = p.Close()
				plain[name] = translated(t, kind.program(n))
			}
		}
	})
	grew := 0
	hardened.JIT(t, true, func() {
		for name, before := range plain {
			spec := tried[name].program(n)
			made, w := translated(t, spec), WorkOf(spec.Type, spec.Instructions)
			if most := w.Blinded().Translated; made > most {
				t.Errorf("%s: the kernel makes %d instructions, %d are counted", name, made, most)
			}
			if made <= before+n {
				continue
			}
			if grew++; w.Constants < n {
				t.Errorf("%s: %d constants are counted, and the kernel makes %d instructions of %d", name, w.Constants, made, before)
			}
		}
	})
	if grew == 0 {
		t.Error("the kernel blinds no constants")
	}
}

// translated is how many instructions the kernel makes of a program.
func translated(t *testing.T, spec *ebpf.ProgramSpec) int {
	t.Helper()
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		t.Skipf("SKIPPED: this kernel does not take it: %v", err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	size, err := info.TranslatedSize()
	if err != nil {
		t.Fatal(err)
	}
	return size / asm.InstructionSize
}

// TestALostPointerCountsAsAField: what a function or the stack may hand on counts.
func TestALostPointerCountsAsAField(t *testing.T) {
	call := func(name string) asm.Instruction {
		return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall, Constant: -1}.WithReference(name)
	}
	end := asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	for sentence, c := range map[string]struct {
		insns  asm.Instructions
		fields int
	}{
		"through the context":             {append(field(asm.R2, asm.R1, 40, asm.Word), end...), 1},
		"through a register that it lost": {append(asm.Instructions{asm.Mov.Imm(asm.R1, 0)}, append(field(asm.R2, asm.R1, 40, asm.Word), end...)...), 0},
		"through a sum":                   {append(asm.Instructions{asm.Add.Imm(asm.R1, 40)}, append(field(asm.R2, asm.R1, 0, asm.Word), end...)...), 1},
		"through a socket of the context": {append(field(asm.R2, asm.R1, 168, asm.DWord), append(field(asm.R3, asm.R2, 4, asm.Word), end...)...), 2},
		"through a number of the context": {append(field(asm.R2, asm.R1, 76, asm.Word), append(field(asm.R3, asm.R2, 4, asm.Word), end...)...), 1},
		"in a function that is handed it": {append(append(asm.Instructions{call("f")}, end...),
			asm.LoadMem(asm.R0, asm.R1, 0, asm.Word).WithSymbol("f"), asm.Return()), 1},
		"through what a function returned": {append(append(asm.Instructions{call("f"), asm.LoadMem(asm.R3, asm.R0, 0, asm.Word)}, end...),
			asm.Mov.Reg(asm.R0, asm.R1).WithSymbol("f"), asm.Return()), 1},
		"one of two ways": {append(asm.Instructions{
			asm.Mov.Imm(asm.R3, 0), opcode(0x15, asm.R3, 0, 1, 5), asm.Mov.Reg(asm.R3, asm.R1), asm.LoadMem(asm.R4, asm.R3, 0, asm.Word),
		}, end...), 1},
	} {
		found := 0
		for _, is := range conversions(ebpf.SchedCLS, c.insns) {
			if is {
				found++
			}
		}
		if found != c.fields {
			t.Errorf("%s: %d fields, want %d", sentence, found, c.fields)
		}
	}
}

// TestWhatAProgramDoesWithItsContext: stores of probes, and the socket of a packet, also where CO-RE
// says where it is.
func TestWhatAProgramDoesWithItsContext(t *testing.T) {
	end := asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	store := asm.StoreMem(asm.R1, 112, asm.R0, asm.DWord)
	sk := asm.LoadMem(asm.R2, asm.R1, 168, asm.DWord)
	spill, value := asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord), asm.LoadMapValue(asm.R3, 0, 0).WithReference("m")
	moved := btf.WithCORERelocationMetadata(asm.LoadMem(asm.R2, asm.R1, 8, asm.DWord), &btf.CORERelocation{})
	for sentence, c := range map[string]struct {
		kind           ebpf.ProgramType
		insns          asm.Instructions
		writes, socket bool
	}{
		"a probe that stores to its context": {ebpf.Kprobe, asm.Instructions{store}, true, false},
		"one that stores by its own type":    {ebpf.UnspecifiedProgram, asm.Instructions{store}, true, false},
		"one that stores a number":           {ebpf.Kprobe, asm.Instructions{asm.StoreImm(asm.R1, 80, 1, asm.Word)}, true, false},
		"one that stores by a spilled pointer": {ebpf.Kprobe,
			asm.Instructions{asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord), asm.LoadMem(asm.R1, asm.RFP, -8, asm.DWord), store}, true, false},
		"one that stores by an exchanged pointer": {ebpf.Kprobe, asm.Instructions{asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord), asm.Mov.Imm(asm.R1, 0),
			asm.Xchg.Mem(asm.RFP, asm.R1, asm.DWord, -8), store}, true, false},
		"one that exchanges it onto its stack": {ebpf.Kprobe, asm.Instructions{
			asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord), asm.Xchg.Mem(asm.RFP, asm.R1, asm.DWord, -8),
			asm.LoadMem(asm.R1, asm.RFP, -8, asm.DWord), store}, true, false},
		"one that counts by a number of its context": {ebpf.Kprobe, asm.Instructions{asm.LoadMem(asm.R2, asm.R1, 80, asm.DWord), asm.And.Imm(asm.R2, 63),
			asm.LoadMapValue(asm.R3, 0, 0).WithReference("m"), asm.Add.Reg(asm.R3, asm.R2), asm.StoreMem(asm.R3, 0, asm.R2, asm.DWord)}, false, false},
		"one whose context is spilled, and that counts by a number of a map": {ebpf.Kprobe, asm.Instructions{spill, value,
			asm.LoadMem(asm.R2, asm.R3, 0, asm.DWord), asm.Add.Reg(asm.R3, asm.R2), asm.StoreMem(asm.R3, 0, asm.R2, asm.DWord)}, false, false},
		"one that spills such a number, and fills it again": {ebpf.Kprobe, asm.Instructions{spill, value, asm.LoadMem(asm.R2, asm.R3, 0, asm.DWord),
			asm.StoreMem(asm.R3, 8, asm.R2, asm.DWord), asm.StoreMem(asm.RFP, -16, asm.R2, asm.DWord), asm.LoadMem(asm.R4, asm.RFP, -16, asm.DWord),
			asm.Add.Reg(asm.R3, asm.R4), asm.StoreMem(asm.R3, 0, asm.R2, asm.DWord)}, false, false},
		"one that stores its context in a map, where it is a number": {ebpf.Kprobe, asm.Instructions{value, asm.StoreMem(asm.R3, 0, asm.R1, asm.DWord),
			asm.LoadMem(asm.R2, asm.RFP, -16, asm.DWord), asm.Add.Reg(asm.R3, asm.R2), asm.StoreMem(asm.R3, 0, asm.R2, asm.DWord)}, false, false},
		"one that fills it by another register": {ebpf.Kprobe, asm.Instructions{spill, asm.Mov.Reg(asm.R6, asm.RFP), asm.Add.Imm(asm.R6, -8),
			asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord), store}, true, false},
		"one that spills it by another register": {ebpf.Kprobe, asm.Instructions{asm.Mov.Reg(asm.R6, asm.RFP), asm.StoreMem(asm.R6, -8, asm.R1, asm.DWord),
			asm.LoadMem(asm.R1, asm.RFP, -8, asm.DWord), store}, true, false},
		"one that spills a pointer to it": {ebpf.Kprobe, asm.Instructions{spill, asm.StoreMem(asm.RFP, -16, asm.RFP, asm.DWord),
			asm.LoadMem(asm.R6, asm.RFP, -16, asm.DWord), asm.LoadMem(asm.R1, asm.R6, -8, asm.DWord), store}, true, false},
		"one that spills it where CO-RE says": {ebpf.Kprobe, asm.Instructions{btf.WithCORERelocationMetadata(spill, &btf.CORERelocation{}),
			asm.LoadMem(asm.R1, asm.RFP, -16, asm.DWord), store}, true, false},
		"one that hands it on by its stack": {ebpf.Kprobe, asm.Instructions{spill, asm.Mov.Reg(asm.R1, asm.RFP),
			asm.Call.Label("f"), asm.Mov.Imm(asm.R0, 0), asm.Return(),
			asm.LoadMem(asm.R1, asm.R1, -8, asm.DWord).WithSymbol("f"), store}, true, false},
		"a filter that loads the socket by an exchanged pointer": {ebpf.SchedCLS, asm.Instructions{asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R1, 0), asm.Xchg.Mem(asm.RFP, asm.R1, asm.DWord, -8), sk}, false, true},
		"one that stores on its stack":          {ebpf.Kprobe, asm.Instructions{asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord)}, false, false},
		"one that loads":                        {ebpf.Kprobe, asm.Instructions{asm.LoadMem(asm.R2, asm.R1, 112, asm.DWord)}, false, false},
		"a filter that stores to its context":   {ebpf.SchedCLS, asm.Instructions{asm.StoreImm(asm.R1, 8, 1, asm.Word)}, false, false},
		"a filter that loads the socket":        {ebpf.SchedCLS, asm.Instructions{sk}, false, true},
		"one that loads what CO-RE says":        {ebpf.SchedCLS, asm.Instructions{moved}, false, true},
		"one that loads the socket, of no type": {ebpf.UnspecifiedProgram, asm.Instructions{sk}, false, true},
		"one that loads another field":          {ebpf.SchedCLS, asm.Instructions{asm.LoadMem(asm.R2, asm.R1, 40, asm.Word)}, false, false},
		"one that loads from a map":             {ebpf.SchedCLS, asm.Instructions{asm.LoadMapValue(asm.R1, 0, 0).WithReference("m"), sk}, false, false},
	} {
		p := &inspected{}
		p.finishContext(c.kind, append(c.insns, end...))
		if p.facts.WritesRegisters != c.writes || p.facts.ReadsPacketSocket != c.socket {
			t.Errorf("%s: writes %v, socket %v", sentence, p.facts.WritesRegisters, p.facts.ReadsPacketSocket)
		}
	}
}

// TestCostsStayNumbers: of what is beyond every figure.
func TestCostsStayNumbers(t *testing.T) {
	if got := (Work{Translated: 1 << 40, Rewrites: 1 << 40}).Cost(); got != 1<<64-1 {
		t.Errorf("it costs %d", got)
	}
	if got := LoadTime(1<<64 - 1); got < 0 {
		t.Errorf("it takes %v", got)
	}
}

// BenchmarkLoad loads programs that repeat one kind of instruction: the time is that of the verifier
// and of what the kernel replaces.
func BenchmarkLoad(b *testing.B) {
	need.Kernel(b)
	for name, kind := range kinds(b) {
		for _, n := range []int{500, 1500} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				spec := kind.program(n)
				cost := WorkOf(spec.Type, spec.Instructions).Cost()
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				for b.Loop() {
					before := busy(b)
					p, err := ebpf.NewProgramWithOptions(spec, ebpf.ProgramOptions{LogDisabled: true})
					if err != nil {
						b.Skipf("SKIPPED: this kernel does not take it: %v", err)
					}
					took := busy(b) - before
					b.ReportMetric(float64(took.Milliseconds()), "CPU-ms/load")
					b.ReportMetric(float64(took.Nanoseconds())/float64(cost), "ns/move")
					b.ReportMetric(float64(cost)/MaxLoadCost, "bounds")
					_ = p.Close()
				}
			})
		}
	}
}

// busy is how long the thread had a processor.
func busy(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestAMapIsMadeWithinItsCost makes maps of each kind that costs something else, and sees that their costs are of the right order.
func TestAMapIsMadeWithinItsCost(t *testing.T) {
	need.Kernel(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpus := ebpf.MustPossibleCPU()
	for _, spec := range []ebpf.MapSpec{
		{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 200_000},
		{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 8, MaxEntries: 200_000},
		{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 256, MaxEntries: 100_000},
		{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 8, MaxEntries: 2_000_000, Flags: flagNoPrealloc},
		{Type: ebpf.LRUCPUHash, KeySize: 4, ValueSize: 8, MaxEntries: 200_000},
		{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 2_000_000},
		{Type: ebpf.LRUHash, KeySize: 4, ValueSize: 8, MaxEntries: 2_000_000},
		{Type: ebpf.Array, KeySize: 4, ValueSize: 256, MaxEntries: 200_000},
		{Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 8, MaxEntries: 1 << 30, Flags: flagNoPrealloc},
		{Type: ebpf.RingBuf, MaxEntries: 1 << 26},
		{Type: ebpf.Arena, MaxEntries: 1 << 20, Flags: flagMmapable},
	} {
		began := busy(t)
		m, err := ebpf.NewMap(&spec)
		took, counted := busy(t)-began, time.Duration(MapCost(&spec, cpus)*nsPerMove)
		if spec.Type == ebpf.Arena && (errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL)) {
			continue // Linux 6.9
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = m.Close()
		t.Logf("%s of %d entries, %d bytes: %s, counted %s", spec.Type, spec.MaxEntries, spec.ValueSize, took, counted)
		// A busy machine takes longer, and no processor is like the one that was measured.
		// What has nothing for each CPU is known well enough not to be counted far too high.
		isFlat := spec.Type == ebpf.Arena || spec.Type == ebpf.RingBuf
		if took > 5*counted+10*time.Millisecond || isFlat && counted > 20*took+200*time.Millisecond {
			t.Errorf("%s of %d entries takes %s, and is counted as %s", spec.Type, spec.MaxEntries, took, counted)
		}
	}
	if cost := MapCost(&ebpf.MapSpec{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 1 << 31, MaxEntries: 1<<32 - 1}, 8192); cost < MaxMapCost {
		t.Errorf("more than there are numbers for is counted as %d", cost)
	}
}

// TestOrdinaryMapsOfANodeOfManyCPUsAreAllowed: what a namespace may have made does not go by the size of the machine at 256 CPUs.
func TestOrdinaryMapsOfANodeOfManyCPUsAreAllowed(t *testing.T) {
	const cpus = 256
	hash := MapCost(&ebpf.MapSpec{Type: ebpf.PerCPUHash, KeySize: 16, ValueSize: 64, MaxEntries: 65_536}, cpus)
	lru := MapCost(&ebpf.MapSpec{Type: ebpf.LRUCPUHash, KeySize: 16, ValueSize: 64, MaxEntries: 131_072}, cpus)
	if hash+lru > MaxMapCost {
		t.Errorf("a hash and an LRU with values per CPU take %s, and %s is allowed", LoadTime(hash+lru), LoadTime(MaxMapCost))
	}
}
