// Package pointers follows the pointers of a linked program through its registers and its
// stack, and finds a load from memory that is not the program's own: what a program reads of
// the kernel without calling a helper for it.
//
// An instruction that CO-RE relocates has an unknown constant and an unknown offset: what is found
// of it holds for each kernel that it may be loaded into.
//
// It errs on one side. What it does not understand, a pointer of which it lost track and a
// program that takes it too long count as such a load. It relies on the verifier, which lets
// no program load through a number: so of a register that is a number on one way and a
// pointer on another, the pointer counts. It is pure, and bounded in time and memory by the
// number of instructions.
package pointers

import (
	"container/heap"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// Memory is what a value points to.
type Memory uint8

// What values can be.
const (
	// Number points to nothing.
	Number Memory = iota
	// Own is memory that the kernel gives the program for itself, or offers by fields that
	// it chose: values of maps, ring buffers, packets, sockets, another function's stack.
	Own
	// Context is what the hook passes to the program.
	Context
	// Argument is a number that the program loaded from its context, or one with another added
	// to it. The verifier lets no program load through it.
	Argument
	// Foreign is memory of the kernel, or what is not known.
	Foreign
	stack
	function
	// described is a map, whose description is memory of the kernel.
	described
)

// Rules are what the instructions alone do not say.
type Rules struct {
	// Fields is what pointers are that the program loads from its context.
	Fields Memory
	// Helper and Kfunc are what a call returns.
	Helper func(id int64) Memory
	Kfunc  func(name string) Memory
	// Copied is which arguments of a helper, from 0 on, point to memory that it copies to where
	// the program or somebody else reads it.
	Copied func(id int64) []int
	// Called is told of each call of a helper that the program can reach. It is told of none
	// where the program could not be followed.
	Called func(id int64, arguments [5]Passed)
	// Returned is called with each number that the program may return, and that is positive, known and small.
	Returned func(number int)
}

// Passed is an argument of a call: what it points to, and the number that it is, if that is
// positive, known and small; else 0.
type Passed struct {
	Memory Memory
	Number int
}

// Bounds of the analysis. The kernel loads no program of more instructions.
const (
	maxInstructions = 1 << 20
	maxPlaces       = 1 << 15
	// passes is how often each instruction may be looked at, on average.
	passes = 8
)

const registers = 11

// slots are the words of a frame of 512 bytes.
const slots = 64

// anywhere is an offset into the stack that is not known.
const anywhere = 1 << 14

// value is what a register or a word of the stack holds: n is an offset into the stack, the
// number of a function, or a number itself where it is positive and known, else 0.
type value struct {
	memory Memory
	n      int16
}

// join is what a value is that is one or the other.
func join(a, b value) value {
	switch {
	case a == b:
		return a
	case isNumber(a) && isNumber(b):
		return value{memory: max(a.memory, b.memory)}
	case isNumber(b):
		return a
	case isNumber(a):
		return b
	case isOwn(a) && isOwn(b) && a.memory != b.memory, a.memory == stack && b.memory == stack:
		return value{stack, anywhere}
	case isOwn(a) && isOwn(b):
		return value{memory: Own}
	}
	return value{memory: Foreign}
}

// isNumber reports whether a value points to nothing that the verifier lets the program load.
func isNumber(v value) bool { return v.memory == Number || v.memory == Argument }

func isOwn(v value) bool { return v.memory == Own || v.memory == stack }

// outside is a value as another function sees it.
func outside(v value) value {
	if v.memory == stack {
		return value{memory: Own}
	}
	return v
}

// state is what is known at one place.
type state struct {
	registers [registers]value
	words     [slots]value
}

// ForeignLoad describes the first load from memory that is not the program's own, or the first
// call of a helper that copies such memory; empty where there is none. insns are those of the program and all functions that it reaches,
// the program's first.
func ForeignLoad(insns asm.Instructions, rules Rules) string {
	w, ok := newWalk(insns, rules)
	if !ok {
		return "more branches than can be followed"
	}
	if !w.settle() {
		return "more ways than can be followed"
	}
	if w.spills {
		// A pointer went into memory that is not this function's stack: what other functions
		// may have written to is known no more.
		w.clobbers, w.budget = true, passes*len(insns)
		for i := range w.places {
			w.change(i)
		}
		if !w.settle() {
			return "more ways than can be followed"
		}
	}
	w.finding = true
	for i := range w.places {
		if w.places[i].seen {
			w.follow(i)
		}
	}
	if w.found < 0 {
		return ""
	}
	if w.insns[w.found].OpCode.JumpOp() == asm.Call && w.insns[w.found].OpCode.Class().IsJump() {
		return fmt.Sprintf("a call at instruction %d that copies it", w.found)
	}
	return fmt.Sprintf("a load at instruction %d", w.found)
}

// place is an instruction that several ways lead to.
type place struct {
	at       int
	function int
	seen     bool
	pending  bool
	state    state
}

// queue is a heap of places that changed: the first in the program goes first, so that most
// ways are followed once.
type queue []int

// Len implements heap.Interface.
func (q queue) Len() int { return len(q) }

// Less implements heap.Interface.
func (q queue) Less(i, j int) bool { return q[i] < q[j] }

// Swap implements heap.Interface.
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(int)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

// callable is a function of the program.
type callable struct {
	place    int
	returns  value
	returned bool
	// callers are the places from which ways lead to a call of it.
	callers map[int]bool
}

type walk struct {
	Rules
	insns asm.Instructions
	// offsets are those of the instructions in the kernel's program, where wide ones are two,
	// and index leads back: -1 inside of one.
	offsets, index []int32
	places         []place
	// placeAt are the places by instruction; -1 for none.
	placeAt   []int32
	changed   queue
	functions []callable
	named     map[string]int
	// taken are the functions whose address is a value.
	taken    []int
	budget   int
	spills   bool
	clobbers bool
	finding  bool
	found    int
}

// newWalk finds the places of a program: the beginnings of functions and the targets of
// jumps.
func newWalk(insns asm.Instructions, rules Rules) (*walk, bool) {
	w := &walk{Rules: rules, insns: insns, named: map[string]int{}, found: -1, budget: passes*len(insns) + 64}
	if len(insns) == 0 || len(insns) > maxInstructions {
		return nil, false
	}
	for i := range insns {
		w.offsets = append(w.offsets, int32(len(w.index)))
		w.index = append(w.index, int32(i))
		if insns[i].Width() > 1 {
			w.index = append(w.index, -1)
		}
	}
	leads := make([]bool, len(insns))
	for i := range insns {
		if to, ok := w.target(i); ok {
			leads[to] = true
		}
	}
	w.placeAt = make([]int32, len(insns))
	for i := range insns {
		symbol := insns[i].Symbol()
		begins := i == 0 || symbol != ""
		w.placeAt[i] = -1
		if !begins && !leads[i] {
			continue
		}
		if len(w.places) == maxPlaces {
			return nil, false
		}
		if begins {
			w.named[symbol] = len(w.functions)
			w.functions = append(w.functions, callable{place: len(w.places), callers: map[int]bool{}})
		}
		w.placeAt[i] = int32(len(w.places))
		w.places = append(w.places, place{at: i, function: len(w.functions) - 1})
	}
	w.take()
	return w, true
}

// take finds the functions whose address is a value.
func (w *walk) take() {
	for i := range w.insns {
		f, ok := w.named[w.insns[i].Reference()]
		if ok && w.insns[i].IsLoadOfFunctionPointer() && !slices.Contains(w.taken, f) {
			w.taken = append(w.taken, f)
		}
	}
}

// target is where a jump goes.
func (w *walk) target(i int) (int, bool) {
	ins := &w.insns[i]
	op := ins.OpCode.JumpOp()
	if !ins.OpCode.Class().IsJump() || op == asm.Call || op == asm.Exit {
		return 0, false
	}
	distance := int(ins.Offset)
	if op == asm.Ja && ins.OpCode.Class() == asm.Jump32Class {
		distance = int(ins.Constant)
	}
	to := int(w.offsets[i]) + 1 + distance
	if to < 0 || to >= len(w.index) || w.index[to] < 0 {
		return 0, false
	}
	return int(w.index[to]), true
}

// change has a place followed again.
func (w *walk) change(i int) {
	if p := &w.places[i]; p.seen && !p.pending {
		p.pending = true
		heap.Push(&w.changed, i)
	}
}

// settle follows all ways until nothing changes; false where that takes too long.
func (w *walk) settle() bool {
	var start state
	start.registers[asm.R1] = value{memory: Context}
	w.enter(0, start)
	for {
		for len(w.changed) > 0 {
			i := heap.Pop(&w.changed).(int)
			w.places[i].pending = false
			if w.follow(i); w.budget < 0 {
				return false
			}
		}
		// Functions that nothing is seen to call, such as handlers of exceptions.
		unseen := w.unseen()
		if unseen < 0 {
			return true
		}
		var unknown state
		for r := asm.R1; r <= asm.R5; r++ {
			unknown.registers[r] = value{memory: Foreign}
		}
		w.enter(w.functions[unseen].place, unknown)
	}
}

func (w *walk) unseen() int {
	for i := range w.functions {
		if !w.places[w.functions[i].place].seen {
			return i
		}
	}
	return -1
}

// enter begins a function with arguments.
func (w *walk) enter(place int, s state) {
	s.registers[asm.RFP] = value{memory: stack}
	w.reach(place, &s)
}

// reach joins a state with those that reached a place before.
func (w *walk) reach(i int, s *state) {
	p := &w.places[i]
	if !p.seen {
		p.seen, p.state = true, *s
		w.change(i)
		return
	}
	before := p.state
	for r := range p.state.registers {
		p.state.registers[r] = join(p.state.registers[r], s.registers[r])
	}
	for at := range p.state.words {
		p.state.words[at] = join(p.state.words[at], s.words[at])
	}
	if p.state != before {
		w.change(i)
	}
}

// follow walks from a place to where the way ends or joins another one.
func (w *walk) follow(from int) {
	s := w.places[from].state
	for i := w.places[from].at; i < len(w.insns); i++ {
		if to := int(w.placeAt[i]); to >= 0 && to != from {
			if !w.finding {
				w.reach(to, &s)
			}
			return
		}
		w.budget--
		ins := &w.insns[i]
		switch op := ins.OpCode.JumpOp(); {
		case !ins.OpCode.Class().IsJump():
			w.step(&s, ins, i)
		case op == asm.Call:
			w.call(&s, ins, from, i)
		case op == asm.Exit:
			w.leave(from, s.registers[asm.R0])
			return
		default:
			if to, ok := w.target(i); ok && !w.finding {
				w.reach(int(w.placeAt[to]), &s)
			}
			if op == asm.Ja {
				return
			}
		}
	}
}

// leave joins what a function returns.
func (w *walk) leave(from int, v value) {
	f := &w.functions[w.places[from].function]
	if w.finding && f == &w.functions[0] && v.memory == Number && v.n > 0 && w.Returned != nil {
		w.Returned(int(v.n))
	}
	returns := outside(v)
	if f.returned {
		returns = join(f.returns, returns)
	}
	if f.returned && returns == f.returns || w.finding {
		return
	}
	f.returns, f.returned = returns, true
	// In one order, so that the work is the same each time.
	for _, caller := range slices.Sorted(maps.Keys(f.callers)) {
		w.change(caller)
	}
}
