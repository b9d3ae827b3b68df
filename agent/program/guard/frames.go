package guard

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// frameSize is how many bytes of stack a function can use.
const frameSize = 512

// ClearFrames has the program and each of its functions begin with zeroes in what they can use
// of the stack. The verifier lets programs of CAP_PERFMON read what they never wrote there
// (allow_uninit_stack), and it holds what the kernel left: addresses, and data of whom it ran for before.
//
// What a function can use is found from its instructions. Where that is not known, since it adds
// a number from elsewhere to an address of its stack, all 512 bytes are cleared. The kernel adds
// up the stack of functions that call each other, so such a function loads only without others.
func ClearFrames(spec *ebpf.ProgramSpec) error {
	if len(spec.Instructions) == 0 {
		return errors.New("clear the stack of " + spec.Name + ": it has no instructions")
	}
	if err := named(spec); err != nil {
		return err
	}
	var out asm.Instructions
	depths := depths(spec.Instructions)
	zero := asm.Instruction{OpCode: asm.OpCode(asm.StClass).SetMode(asm.MemMode).SetSize(asm.DWord), Dst: asm.RFP}
	for i, f := range functionsOf(spec.Instructions) {
		var clear asm.Instructions
		for at := -depths[i]; at < 0; at += 8 {
			zero.Offset = int16(at)
			clear = append(clear, zero)
		}
		out = append(out, before(clear, f)...)
	}
	spec.Instructions = out
	return nil
}

// named rejects a call of a function by where it lies: it could begin after the zeroes.
func named(spec *ebpf.ProgramSpec) error {
	symbols := map[string]bool{}
	for i := range spec.Instructions {
		symbols[spec.Instructions[i].Symbol()] = true
	}
	for i := range spec.Instructions {
		ins := &spec.Instructions[i]
		if (ins.IsFunctionCall() || ins.IsLoadOfFunctionPointer()) && (ins.Reference() == "" || ins.Constant != -1 || !symbols[ins.Reference()]) {
			return fmt.Errorf("clear the stack of %s: instruction %d refers to a function that has no name; compile the object with its symbols", spec.Name, i)
		}
	}
	return nil
}

// functionsOf are the instructions of each function. The kernel has every one begin where
// something calls it or refers to it, which is by its symbol.
func functionsOf(insns asm.Instructions) []asm.Instructions {
	var out []asm.Instructions
	from := 0
	for i := range insns {
		if i > from && insns[i].Symbol() != "" {
			out, from = append(out, insns[from:i]), i
		}
	}
	return append(out, insns[from:])
}

// noAddress is an offset of what is no address of a stack. It is above all others.
const noAddress = 1

// address is what a register may hold: the lowest offset, from -512 to 0, into the function's
// own frame, and that from what the function was given, which may lie in another frame.
type address struct{ own, given int16 }

var none = address{noAddress, noAddress}

func join(a, b address) address { return address{min(a.own, b.own), min(a.given, b.given)} }

func isAddress(a address) bool { return a != none }

// plus is the address at a distance. It saturates, at the lower end to anywhere in a frame.
func (a address) plus(n int64) address {
	move := func(from int16) int16 {
		if from == noAddress {
			return noAddress
		}
		return int16(max(-frameSize, min(0, int64(from)+max(-2*frameSize, min(n, 2*frameSize)))))
	}
	return address{move(a.own), move(a.given)}
}

// frames is what is known of a program's functions. Every field only ever says of more that
// addresses get there, so what is found holds once nothing changes.
type frames struct {
	named map[string]int
	// gets are the arguments of each function that may be addresses of a stack.
	gets [][5]bool
	// stores are the lowest addresses of its own that each function writes into memory, and stored
	// says whether any function writes any.
	stores []int16
	stored bool
	// callbacks says whether the program passes functions to the kernel.
	callbacks bool
	// lowest is what each function uses of its frame; shares says whether others get addresses of it.
	lowest []int16
	shares []bool
	// lowers says whether a function goes below an address that it was given.
	lowers  bool
	changed bool
}

// maxRounds is how often a program is looked at before everything counts as an address.
const maxRounds = 6

// depths are how many bytes each function can use of its frame, a multiple of eight.
func depths(insns asm.Instructions) []int {
	functions := functionsOf(insns)
	f := &frames{named: map[string]int{}, gets: make([][5]bool, len(functions)), stores: make([]int16, len(functions)),
		lowest: make([]int16, len(functions)), shares: make([]bool, len(functions))}
	for i := range functions {
		f.named[functions[i][0].Symbol()], f.stores[i] = i, noAddress
	}
	for i := range insns {
		if insns[i].IsLoadOfFunctionPointer() {
			// The kernel passes what the program gave it as the second argument or a later one.
			f.callbacks, f.gets[f.named[insns[i].Reference()]] = true, [5]bool{false, true, true, true, false}
		}
	}
	for round := 0; round == 0 || f.changed; round++ {
		if f.changed = false; round == maxRounds {
			f.giveAll()
			f.stored = true
			for i := range f.stores {
				f.stores[i] = -frameSize
			}
		}
		for i := range functions {
			(&frame{frames: f, id: i, insns: functions[i]}).follow()
		}
	}
	out := make([]int, len(functions))
	for i := range out {
		if out[i] = (int(-f.lowest[i]) + 7) / 8 * 8; f.lowers && f.shares[i] {
			out[i] = frameSize
		}
	}
	return out
}

// giveAll has every argument of every function but the first be an address.
func (f *frames) giveAll() {
	for i := range f.gets[1:] {
		f.gets[i+1] = [5]bool{true, true, true, true, true}
	}
}

// frame follows the addresses through one function.
type frame struct {
	*frames
	id    int
	insns asm.Instructions
	// offsets are those of instructions in words, index leads back: -1 inside of one.
	offsets []int
	index   []int
	states  []registers
	visits  []uint8
	pending []int
}

// registers are those of the machine, the last of which is the end of the frame.
type registers [11]address

// maxVisits is how often an instruction is looked at before what still changes is anywhere.
const maxVisits = 32

func (f *frame) follow() {
	f.visits, f.states = make([]uint8, len(f.insns)), make([]registers, len(f.insns))
	for i := range f.insns {
		f.offsets, f.index = append(f.offsets, len(f.index)), append(f.index, i)
		if f.insns[i].Width() > 1 {
			f.index = append(f.index, -1)
		}
	}
	var s registers
	for r := range s {
		s[r] = none
	}
	for i, given := range f.gets[f.id] {
		if given {
			s[int(asm.R1)+i].given = 0
		}
	}
	s[asm.RFP].own = 0
	f.reach(0, s)
	for len(f.pending) > 0 {
		i := f.pending[len(f.pending)-1]
		f.pending = f.pending[:len(f.pending)-1]
		s := f.states[i]
		f.step(&s, &f.insns[i])
		f.leave(i, s)
	}
}

// reach joins what is known before an instruction with what one way to it says.
func (f *frame) reach(i int, s registers) {
	if i >= len(f.insns) {
		return
	}
	now := s
	if f.visits[i] > 0 {
		for r := range s {
			now[r] = join(s[r], f.states[i][r])
			if now[r] != f.states[i][r] && f.visits[i] > maxVisits {
				now[r] = now[r].plus(-frameSize)
			}
		}
		if now == f.states[i] {
			return
		}
	}
	f.visits[i] = min(f.visits[i]+1, maxVisits+1)
	f.states[i] = now
	f.pending = append(f.pending, i)
}

// leave goes on to the instructions that may follow.
func (f *frame) leave(i int, s registers) {
	ins := &f.insns[i]
	op := ins.OpCode.JumpOp()
	switch {
	case !ins.OpCode.Class().IsJump(), op == asm.Call:
		f.reach(i+1, s)
		return
	case op == asm.Exit:
		return
	case op != asm.Ja:
		f.reach(i+1, s)
	}
	distance := int(ins.Offset)
	if op == asm.Ja && ins.OpCode.Class() == asm.Jump32Class {
		distance = int(ins.Constant)
	}
	// A jump that leads elsewhere is one that the verifier does not take, or that is not known.
	to := f.offsets[i] + 1 + distance
	if to < 0 || to >= len(f.index) || f.index[to] < 0 || ins.Reference() != "" || op == asm.Ja && ins.OpCode.Source() == asm.RegSource {
		f.touch(address{-frameSize, -frameSize})
		return
	}
	f.reach(f.index[to], s)
}

// touch notes an address that the function makes or uses.
func (f *frame) touch(a address) address {
	f.lowest[f.id] = min(f.lowest[f.id], a.own)
	f.lowers = f.lowers || a.given < 0
	return a
}

// access notes a load or a store at the instruction's offset from an address. One that CO-RE
// relocates may be anywhere.
func (f *frame) access(from address, ins *asm.Instruction) {
	f.touch(from.plus(relocated(ins, int64(ins.Offset))))
}

// relocated is an offset or a constant of an instruction, or one that leads anywhere below where a
// load changes it.
func relocated(ins *asm.Instruction, n int64) int64 {
	if btf.CORERelocationMetadata(ins) != nil {
		return -frameSize
	}
	return n
}

// step does what an instruction does to the registers.
func (f *frame) step(s *registers, ins *asm.Instruction) {
	switch class := ins.OpCode.Class(); {
	case class == asm.ALU64Class:
		s[ins.Dst] = f.touch(sum(s, ins))
	case class == asm.ALUClass:
		s[ins.Dst] = none
	case class == asm.LdClass && ins.OpCode.IsDWordLoad():
		s[ins.Dst] = none
	case class == asm.LdClass:
		s.called()
	case class == asm.LdXClass:
		f.access(s[ins.Src], ins)
		s[ins.Dst] = f.loaded(ins)
	case class == asm.StClass:
		f.access(s[ins.Dst], ins)
	case class == asm.StXClass && ins.OpCode.Mode() == asm.AtomicMode:
		f.atomic(s, ins)
	case class == asm.StXClass:
		f.access(s[ins.Dst], ins)
		f.store(s[ins.Src])
	case ins.OpCode.JumpOp() == asm.Call:
		f.pass(s, ins)
		s.called()
	}
}

// called is what a call does to the registers. No function returns an address of a stack: the
// verifier does not let it.
func (s *registers) called() {
	for r := asm.R0; r <= asm.R5; r++ {
		s[r] = none
	}
}

// sum is what a 64-bit operation gives. What is not a sum with an address is no address.
func sum(s *registers, ins *asm.Instruction) address {
	dst, src, constant := s[ins.Dst], none, ins.OpCode.Source() == asm.ImmSource
	if !constant {
		src = s[ins.Src]
	}
	switch op := ins.OpCode.ALUOp(); {
	case op == asm.Mov:
		return src
	case op == asm.Add && constant:
		return dst.plus(relocated(ins, ins.Constant))
	case op == asm.Sub && constant:
		return dst.plus(relocated(ins, -ins.Constant))
	case op == asm.Add, op == asm.Sub && isAddress(dst):
		return join(dst, src).plus(-frameSize)
	}
	return none
}

// loaded is what a load may give.
func (f *frame) loaded(ins *asm.Instruction) address {
	if !f.stored || ins.OpCode.Size() != asm.DWord {
		return none
	}
	return address{f.stores[f.id], 0}
}

// store notes what is written into memory.
func (f *frame) store(a address) {
	if !isAddress(a) {
		return
	}
	f.shares[f.id] = f.shares[f.id] || a.own != noAddress
	if low := min(a.own, f.stores[f.id]); !f.stored || low != f.stores[f.id] {
		f.stored, f.stores[f.id], f.changed = true, low, true
	}
}

// atomic is an operation on memory, which may load, store, or both.
func (f *frame) atomic(s *registers, ins *asm.Instruction) {
	f.access(s[ins.Dst], ins)
	f.access(s[ins.Src], ins)
	f.store(s[ins.Src])
	got := f.loaded(ins)
	for _, r := range []asm.Register{ins.Dst, ins.Src, asm.R0} {
		s[r] = join(s[r], got)
	}
	s[asm.RFP] = address{0, noAddress}
}

// pass notes which arguments of a call are addresses that another function gets.
func (f *frame) pass(s *registers, ins *asm.Instruction) {
	if ins.Src != asm.PseudoCall && !(f.callbacks && callsBack(ins)) {
		return
	}
	for i := range 5 {
		a := s[int(asm.R1)+i]
		f.shares[f.id] = f.shares[f.id] || a.own != noAddress
		if !isAddress(a) || ins.Src != asm.PseudoCall {
			continue
		}
		if callee := f.named[ins.Reference()]; !f.gets[callee][i] {
			f.gets[callee][i], f.changed = true, true
		}
	}
}

// callsBack reports whether a call may pass an address to a function of the program: helpers are
// known, and no more come.
func callsBack(ins *asm.Instruction) bool {
	if !ins.IsBuiltinCall() {
		return true
	}
	switch asm.BuiltinFunc(ins.Constant) {
	case asm.FnLoop, asm.FnForEachMapElem, asm.FnUserRingbufDrain, asm.FnFindVma:
		return true
	}
	return false
}

// before puts instructions before those of a function. The kernel wants the function's name,
// type and line where it begins. A jump to its first instruction still leads there.
func before(added, function asm.Instructions) asm.Instructions {
	if len(added) == 0 {
		return function
	}
	first := function[0]
	added[0] = added[0].WithSymbol(first.Symbol()).WithSource(first.Source())
	first = first.WithSymbol("")
	if f := btf.FuncMetadata(&first); f != nil {
		added[0] = btf.WithFuncMetadata(added[0], f)
		first = btf.WithFuncMetadata(first, nil)
	}
	return slices.Concat(added, asm.Instructions{first}, function[1:])
}
