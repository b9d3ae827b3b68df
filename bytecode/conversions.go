package bytecode

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// convertible is which registers and words of the stack may point to the context or to a socket, as
// sets of bits: the kernel converts loads and stores through them to those of its own structures.
type convertible struct {
	registers uint16
	words     uint64
}

// arguments are the registers of a function's arguments.
const arguments = 1<<asm.R1 | 1<<asm.R2 | 1<<asm.R3 | 1<<asm.R4 | 1<<asm.R5

func (c convertible) has(r asm.Register) bool { return c.registers&(1<<r) != 0 }

func (c *convertible) set(r asm.Register, is bool) {
	c.registers &^= 1 << r
	if is {
		c.registers |= 1 << r
	}
}

// tracks follows such pointers through a linked program. It errs on one side: a pointer of which it
// lost track counts as one.
type tracks struct {
	insns asm.Instructions
	// index leads from the kernel's count of instructions to insns; -1 inside of a wide one. offsets leads back.
	index, offsets []int
	// functions are where those of the program begin, by name.
	functions map[string]int
	before    []convertible
	seen      []bool
	work      []int
	// fields tells that fields of the context may be such pointers. Those of a probe are numbers.
	fields bool
	// returned, and spilled elsewhere than at a known word of the own stack.
	returned, lost bool
	// spilled says that one lies on a stack, where other functions may load it.
	spilled bool
	// budget is how many instructions may be followed yet.
	budget int
}

// passesOfTracks is how often each instruction may be followed, on average. Of a program that takes
// more, every load and store counts.
const passesOfTracks = 16

// conversions reports by instruction whether it may load or store a field of the context or a socket.
// Tracing programs have what the kernel has, without a conversion.
func conversions(t ebpf.ProgramType, insns asm.Instructions) []bool {
	switch t {
	case ebpf.Kprobe, ebpf.TracePoint, ebpf.RawTracepoint, ebpf.RawTracepointWritable, ebpf.Tracing, ebpf.LSM, ebpf.Syscall, ebpf.StructOps:
		return make([]bool, len(insns))
	}
	return contextAccesses(t, insns)
}

// contextAccesses reports by instruction whether it may load or store through a pointer to the context,
// or to a socket.
func contextAccesses(t ebpf.ProgramType, insns asm.Instructions) []bool {
	found := make([]bool, len(insns))
	tr := newTracks(insns)
	tr.fields = t != ebpf.Kprobe
	tr.settle()
	for i := range insns {
		base, is := accessed(&insns[i])
		found[i] = is && (tr.budget < 0 || tr.seen[i] && tr.before[i].has(base))
	}
	return found
}

// offsetOfSocket is where a packet's context has its socket: sk of struct __sk_buff.
const offsetOfSocket = 168

// finishContext says what the program does with fields of its context that not all of its hooks
// may have it do. A program whose section says of no type may be of any.
func (p *inspected) finishContext(t ebpf.ProgramType, insns asm.Instructions) {
	probe := t == ebpf.Kprobe || t == ebpf.UnspecifiedProgram
	packet := t == ebpf.SchedCLS || t == ebpf.SocketFilter || t == ebpf.UnspecifiedProgram
	if !probe && !packet {
		return
	}
	for i, is := range contextAccesses(t, insns) {
		ins := &insns[i]
		switch {
		case !is:
		case ins.OpCode.Class() != asm.LdXClass:
			p.facts.WritesRegisters = p.facts.WritesRegisters || probe
		case ins.OpCode.Size().Sizeof() == 8 && (ins.Offset == offsetOfSocket || btf.CORERelocationMetadata(ins) != nil):
			p.facts.ReadsPacketSocket = p.facts.ReadsPacketSocket || packet
		}
	}
}

// accessed is the register through which an instruction loads or stores.
func accessed(ins *asm.Instruction) (base asm.Register, is bool) {
	switch ins.OpCode.Class() {
	case asm.LdXClass:
		return ins.Src, true
	case asm.StClass, asm.StXClass:
		return ins.Dst, true
	}
	return 0, false
}

func newTracks(insns asm.Instructions) *tracks {
	n := len(insns)
	t := &tracks{insns: insns, functions: map[string]int{}, before: make([]convertible, n), seen: make([]bool, n), budget: passesOfTracks*n + 64}
	for i := range insns {
		if symbol := insns[i].Symbol(); symbol != "" {
			t.functions[symbol] = i
		}
		t.offsets = append(t.offsets, len(t.index))
		t.index = append(t.index, i)
		for range insns[i].Width() - 1 {
			t.index = append(t.index, -1)
		}
	}
	return t
}

// settle follows all ways until nothing changes, twice or more where functions hand pointers on.
func (t *tracks) settle() {
	for {
		returned, lost, spilled := t.returned, t.lost, t.spilled
		t.reach(0, convertible{registers: 1 << asm.R1})
		for i := range t.insns {
			if f, ok := t.functions[t.insns[i].Reference()]; ok && t.insns[i].IsLoadOfFunctionPointer() {
				// The arguments of a callback.
				t.reach(f, convertible{registers: arguments})
			}
			if t.seen[i] {
				t.work = append(t.work, i)
			}
		}
		for len(t.work) > 0 && t.budget >= 0 {
			t.budget--
			i := t.work[len(t.work)-1]
			t.work = t.work[:len(t.work)-1]
			t.follow(i)
		}
		if t.budget < 0 || returned == t.returned && lost == t.lost && spilled == t.spilled {
			return
		}
	}
}

// reach adds what may hold such pointers before an instruction.
func (t *tracks) reach(i int, c convertible) {
	if i >= len(t.insns) {
		return
	}
	was := t.before[i]
	joined := convertible{was.registers | c.registers, was.words | c.words}
	if t.seen[i] && joined == was {
		return
	}
	t.before[i], t.seen[i] = joined, true
	t.work = append(t.work, i)
}

// follow does what an instruction does to the registers, and goes on to what may be next.
func (t *tracks) follow(i int) {
	ins, c := &t.insns[i], t.before[i]
	if ins.OpCode.Class().IsJump() {
		t.jump(i, ins, c)
		return
	}
	t.step(&c, ins)
	t.reach(i+1, c)
}

func (t *tracks) jump(i int, ins *asm.Instruction, c convertible) {
	op := ins.OpCode.JumpOp()
	switch op {
	case asm.Exit:
		t.returned = t.returned || c.has(asm.R0)
		return
	case asm.Call:
		if f, ok := t.functions[ins.Reference()]; ok && ins.IsFunctionCall() {
			t.reach(f, convertible{registers: c.registers & arguments})
		}
		c.registers &^= 1<<asm.R0 | arguments
		c.set(asm.R0, t.returns(ins))
	default:
		distance := int(ins.Offset)
		if op == asm.Ja && ins.OpCode.Class() == asm.Jump32Class {
			distance = int(ins.Constant)
		}
		if to := t.offsets[i] + 1 + distance; to >= 0 && to < len(t.index) && t.index[to] >= 0 {
			t.reach(t.index[to], c)
		}
		if op == asm.Ja {
			return
		}
	}
	t.reach(i+1, c)
}

// returns reports whether a call may return such a pointer.
func (t *tracks) returns(ins *asm.Instruction) bool {
	if !ins.IsBuiltinCall() {
		return !ins.IsFunctionCall() || t.returned
	}
	h, ok := helperByID(ins.Constant)
	switch h.Name {
	case "bpf_sk_lookup_tcp", "bpf_sk_lookup_udp", "bpf_skc_lookup_tcp", "bpf_sk_fullsock", "bpf_tcp_sock", "bpf_get_listener_sock":
		return true
	}
	return !ok
}

// step does what an instruction does that does not jump.
func (t *tracks) step(c *convertible, ins *asm.Instruction) {
	switch class := ins.OpCode.Class(); {
	case class.IsALU():
		t.arithmetic(c, ins)
	case class == asm.LdClass && ins.OpCode.IsDWordLoad():
		c.set(ins.Dst, false)
	case class == asm.LdClass:
		c.registers &^= 1<<asm.R0 | arguments
	case class == asm.LdXClass:
		c.set(ins.Dst, t.loads(c, ins))
	case class == asm.StXClass && ins.OpCode.Mode() == asm.AtomicMode:
		t.atomic(c, ins)
	case class == asm.StXClass:
		t.store(c, ins)
	}
}

// The operations that load with acquire have the first bit, those that store with release both.
// Others return what was in memory if they have the last bit.
const (
	acquireRelease = 1 << 16
	release        = 1 << 12
	fetches        = 1 << 8
)

// atomic does what an operation on memory does to registers and to the stack. The verifier knows a pointer that such
// an operation fetches from the stack.
func (t *tracks) atomic(c *convertible, ins *asm.Instruction) {
	switch op := ins.OpCode.AtomicOp(); {
	case op&acquireRelease != 0 && op&release != 0:
		t.store(c, ins)
	case op&acquireRelease != 0:
		c.set(ins.Dst, t.loads(c, ins))
	case op == asm.CmpXchg:
		fetched := t.fetches(c, ins)
		t.exchanges(c, ins)
		c.set(asm.R0, fetched)
	case op&fetches != 0:
		fetched := t.fetches(c, ins)
		t.exchanges(c, ins)
		c.set(ins.Src, fetched)
	}
}

// fetches reports whether an operation may fetch such a pointer from where it works.
func (t *tracks) fetches(c *convertible, ins *asm.Instruction) bool {
	at := *ins
	at.Src = ins.Dst
	return t.loads(c, &at)
}

// exchanges notes what an operation may leave in memory, beside what is there.
func (t *tracks) exchanges(c *convertible, ins *asm.Instruction) {
	if c.has(ins.Src) {
		t.store(c, ins)
	}
}

func (t *tracks) arithmetic(c *convertible, ins *asm.Instruction) {
	fromRegister := ins.OpCode.Source() == asm.RegSource
	switch op := ins.OpCode.ALUOp(); {
	case ins.OpCode.Class() == asm.ALUClass:
		c.set(ins.Dst, false)
	case op == asm.Mov:
		c.set(ins.Dst, fromRegister && c.has(ins.Src))
	case op == asm.Add || op == asm.Sub:
		c.set(ins.Dst, c.has(ins.Dst) || fromRegister && c.has(ins.Src))
	default:
		// The verifier lets nothing else keep a pointer.
		c.set(ins.Dst, false)
	}
}

// loads reports whether a load may give such a pointer: a socket from the context or from another
// socket, or what was spilled. All have 8 bytes.
func (t *tracks) loads(c *convertible, ins *asm.Instruction) bool {
	switch {
	case ins.OpCode.Size().Sizeof() != 8:
		return false
	case c.has(ins.Src) && t.fields, t.lost:
		return true
	case c.has(ins.Src):
		return false
	case ins.Src != asm.RFP:
		return t.spilled
	}
	at, whole := ownWord(ins)
	return !whole || c.words&(1<<at) != 0
}

// store notes what is spilled.
func (t *tracks) store(c *convertible, ins *asm.Instruction) {
	is := c.has(ins.Src) && ins.OpCode.Size().Sizeof() == 8
	at, whole := ownWord(ins)
	switch {
	case ins.Dst != asm.RFP:
		t.lost = t.lost || is
	case !whole:
	case is:
		c.words |= 1 << at
		t.spilled = true
	default:
		c.words &^= 1 << at
	}
}

// ownWord is the word of the own stack that a load or store through the frame pointer touches, and
// whether it is one whole word.
func ownWord(ins *asm.Instruction) (at int, whole bool) {
	n := int(ins.Offset)
	if n < -512 || n >= 0 || n%8 != 0 || ins.OpCode.Size().Sizeof() != 8 {
		return 0, false
	}
	return (n + 512) / 8, true
}
