package bytecode

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/bytecode/pointers"
)

// The kinds of pointers that are followed.
const (
	// toContext is to the context or to a socket: the kernel converts loads and stores through it to those of its own structures.
	toContext = iota
	// toStack is to the stack of a function. Only through one does the verifier know a pointer that a program loads.
	toStack
	kindsOfPointers
)

// holders is which registers and words of the stack may hold a pointer of one kind, as sets of bits.
type holders struct {
	registers uint16
	words     uint64
}

// held is what may hold pointers, by kind.
type held [kindsOfPointers]holders

// arguments are the registers of a function's arguments.
const arguments = 1<<asm.R1 | 1<<asm.R2 | 1<<asm.R3 | 1<<asm.R4 | 1<<asm.R5

// has reports whether a register may hold a pointer of a kind.
func (h *held) has(kind int, r asm.Register) bool {
	return h[kind].registers&(1<<r) != 0 || kind == toStack && r == asm.RFP
}

func (h *held) set(kind int, r asm.Register, is bool) {
	h[kind].registers &^= 1 << r
	if is {
		h[kind].registers |= 1 << r
	}
}

// forget has the registers that a call changes hold nothing.
func (h *held) forget() {
	for kind := range h {
		h[kind].registers &^= 1<<asm.R0 | arguments
	}
}

// escaped is where pointers of one kind may be beyond the registers and the own stack of a function.
type escaped struct {
	// returned by a function, and spilled to a word of a stack that is not known.
	returned, lost bool
	// spilled says that one lies on a stack, where other functions may load it.
	spilled bool
}

// tracks follows such pointers through a linked program. It errs on one side: a pointer of which it
// lost track counts as one.
type tracks struct {
	insns asm.Instructions
	// index leads from the kernel's count of instructions to insns; -1 inside of a wide one. offsets leads back.
	index, offsets []int
	// functions are where those of the program begin, by name.
	functions map[string]int
	before    []held
	seen      []bool
	work      []int
	// fields tells that fields of the context may be such pointers. Those of a probe are numbers.
	fields  bool
	escaped [kindsOfPointers]escaped
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
		found[i] = is && (tr.budget < 0 || tr.seen[i] && tr.before[i].has(toContext, base))
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
	t := &tracks{insns: insns, functions: map[string]int{}, before: make([]held, n), seen: make([]bool, n), budget: passesOfTracks*n + 64}
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
		escaped := t.escaped
		t.reach(0, held{toContext: {registers: 1 << asm.R1}})
		for i := range t.insns {
			if f, ok := t.functions[t.insns[i].Reference()]; ok && t.insns[i].IsLoadOfFunctionPointer() {
				// The arguments of a callback.
				t.reach(f, held{{registers: arguments}, {registers: arguments}})
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
		if t.budget < 0 || escaped == t.escaped {
			return
		}
	}
}

// reach adds what may hold such pointers before an instruction.
func (t *tracks) reach(i int, h held) {
	if i >= len(t.insns) {
		return
	}
	was := t.before[i]
	joined := was
	for kind := range joined {
		joined[kind].registers |= h[kind].registers
		joined[kind].words |= h[kind].words
	}
	if t.seen[i] && joined == was {
		return
	}
	t.before[i], t.seen[i] = joined, true
	t.work = append(t.work, i)
}

// follow does what an instruction does to the registers, and goes on to what may be next.
func (t *tracks) follow(i int) {
	ins, h := &t.insns[i], t.before[i]
	if ins.OpCode.Class().IsJump() {
		t.jump(i, ins, h)
		return
	}
	t.step(&h, ins)
	t.reach(i+1, h)
}

func (t *tracks) jump(i int, ins *asm.Instruction, h held) {
	op := ins.OpCode.JumpOp()
	switch op {
	case asm.Exit:
		for kind := range t.escaped {
			t.escaped[kind].returned = t.escaped[kind].returned || h.has(kind, asm.R0)
		}
		return
	case asm.Call:
		if f, ok := t.functions[ins.Reference()]; ok && ins.IsFunctionCall() {
			t.reach(f, held{{registers: h[toContext].registers & arguments}, {registers: h[toStack].registers & arguments}})
		}
		h.forget()
		for kind := range h {
			h.set(kind, asm.R0, t.returns(kind, ins))
		}
	default:
		distance := int(ins.Offset)
		if op == asm.Ja && ins.OpCode.Class() == asm.Jump32Class {
			distance = int(ins.Constant)
		}
		if to := t.offsets[i] + 1 + distance; to >= 0 && to < len(t.index) && t.index[to] >= 0 {
			t.reach(t.index[to], h)
		}
		if op == asm.Ja {
			return
		}
	}
	t.reach(i+1, h)
}

// returns reports whether a call may return a pointer of a kind.
func (t *tracks) returns(kind int, ins *asm.Instruction) bool {
	if !ins.IsBuiltinCall() {
		return !ins.IsFunctionCall() || t.escaped[kind].returned
	}
	h, ok := helperByID(ins.Constant)
	switch h.Name {
	case "bpf_sk_lookup_tcp", "bpf_sk_lookup_udp", "bpf_skc_lookup_tcp", "bpf_sk_fullsock", "bpf_tcp_sock", "bpf_get_listener_sock":
		return kind == toContext
	}
	return !ok
}

// step does what an instruction does that does not jump.
func (t *tracks) step(h *held, ins *asm.Instruction) {
	class := ins.OpCode.Class()
	if class == asm.LdClass && !ins.OpCode.IsDWordLoad() {
		h.forget()
		return
	}
	before := *h
	for kind := range h {
		switch {
		case class.IsALU():
			h.set(kind, ins.Dst, before.computes(kind, ins))
		case class == asm.LdClass:
			h.set(kind, ins.Dst, false)
		case class == asm.LdXClass:
			h.set(kind, ins.Dst, t.loads(kind, &before, ins))
		case class == asm.StXClass && ins.OpCode.Mode() == asm.AtomicMode:
			t.atomic(kind, h, &before, ins)
		case class == asm.StXClass:
			t.store(kind, h, &before, ins)
		}
	}
}

// atomic does what an operation on memory does to registers and to the stack. The verifier knows a pointer that such
// an operation fetches from the stack.
func (t *tracks) atomic(kind int, h, before *held, ins *asm.Instruction) {
	target := pointers.Fetches(ins)
	switch {
	case pointers.StoresWithRelease(ins):
		t.store(kind, h, before, ins)
	case pointers.LoadsWithAcquire(ins):
		h.set(kind, ins.Dst, t.loads(kind, before, ins))
	case target != nil:
		at := *ins
		at.Src = ins.Dst
		fetched := t.loads(kind, before, &at)
		if before.has(kind, ins.Src) {
			// It may leave that in memory, beside what is there.
			t.store(kind, h, before, ins)
		}
		h.set(kind, *target, fetched)
	}
}

// computes reports whether an operation may leave a pointer of a kind in its target.
func (h *held) computes(kind int, ins *asm.Instruction) bool {
	fromRegister := ins.OpCode.Source() == asm.RegSource
	switch op := ins.OpCode.ALUOp(); {
	case ins.OpCode.Class() == asm.ALUClass:
		return false
	case op == asm.Mov:
		return fromRegister && h.has(kind, ins.Src)
	case op == asm.Add || op == asm.Sub:
		return h.has(kind, ins.Dst) || fromRegister && h.has(kind, ins.Src)
	}
	// The verifier lets nothing else keep a pointer.
	return false
}

// loads reports whether a load may give a pointer of a kind: a socket from the context or from another
// socket, or what was spilled to a stack. To the verifier, what a program loads of other memory is a number, whatever it
// stored there. All pointers have 8 bytes.
func (t *tracks) loads(kind int, h *held, ins *asm.Instruction) bool {
	switch {
	case ins.OpCode.Size().Sizeof() != 8:
		return false
	case kind == toContext && t.fields && h.has(toContext, ins.Src):
		return true
	case !h.has(toStack, ins.Src):
		return false
	case ins.Src != asm.RFP:
		return t.escaped[kind].spilled
	}
	at, whole := ownWord(ins)
	return t.escaped[kind].lost || !whole || h[kind].words&(1<<at) != 0
}

// store notes what is spilled.
func (t *tracks) store(kind int, h, before *held, ins *asm.Instruction) {
	is := before.has(kind, ins.Src) && ins.OpCode.Size().Sizeof() == 8
	at, whole := ownWord(ins)
	switch {
	case !before.has(toStack, ins.Dst):
	case ins.Dst != asm.RFP || !whole:
		t.escaped[kind].lost = t.escaped[kind].lost || is
		t.escaped[kind].spilled = t.escaped[kind].spilled || is
	case is:
		h[kind].words |= 1 << at
		t.escaped[kind].spilled = true
	default:
		h[kind].words &^= 1 << at
	}
}

// ownWord is the word of the own stack that a load or store through the frame pointer touches, and
// whether it is one whole word, whatever CO-RE makes of the instruction.
func ownWord(ins *asm.Instruction) (at int, whole bool) {
	n := int(ins.Offset)
	if n < -512 || n >= 0 || n%8 != 0 || ins.OpCode.Size().Sizeof() != 8 || btf.CORERelocationMetadata(ins) != nil {
		return 0, false
	}
	return (n + 512) / 8, true
}
