package pointers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Rules of the tests: helper 1 returns memory of the program's own, 2 foreign memory.
func rules(fields Memory) Rules {
	return Rules{
		Fields: fields,
		Helper: func(id int64) Memory {
			switch id {
			case 1:
				return Own
			case 2:
				return Foreign
			}
			return Number
		},
		Copied: func(id int64) []int { return map[int64][]int{3: {0, 2}}[id] },
		Kfunc:  func(name string) Memory { return map[string]Memory{"own": Own, "foreign": Foreign}[name] },
	}
}

// Instructions of the tests, each one of 64 bits.
var (
	field   = asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord)
	deref   = asm.LoadMem(asm.R0, asm.R1, 8, asm.Word)
	end     = asm.Return()
	zero    = asm.Mov.Imm(asm.R0, 0)
	spill   = asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord)
	reload  = asm.LoadMem(asm.R1, asm.RFP, -8, asm.DWord)
	lookup  = asm.BuiltinFunc(1).Call()
	foreign = asm.BuiltinFunc(2).Call()
	result  = asm.Mov.Reg(asm.R1, asm.R0)
	passed  = asm.Mov.Reg(asm.R1, asm.RFP)
	copies  = asm.BuiltinFunc(3).Call()
)

func kfuncCall(name string) asm.Instruction {
	return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall}.WithReference(name)
}

// fn is a pointer to a function, which takes two instructions.
func fn(r asm.Register, name string) asm.Instruction {
	return asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: r, Src: asm.PseudoFunc}.WithReference(name)
}

func jump(op asm.JumpOp, distance int16) asm.Instruction {
	return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(op).SetSource(asm.ImmSource), Dst: asm.R2, Offset: distance}
}

// at is an instruction with which a function begins.
func at(name string, ins asm.Instruction) asm.Instruction { return ins.WithSymbol(name) }

func TestForeignLoads(t *testing.T) {
	call := func(name string) asm.Instruction { return asm.Call.Label(name) }
	for sentence, c := range map[string]struct {
		insns asm.Instructions
		want  string
	}{
		"a pointer of the context is loaded, and not through": {asm.Instructions{field, zero, end}, ""},
		"a load through a pointer of the context":             {asm.Instructions{field, deref, end}, "a load at instruction 1"},
		"through a sum with it":                               {asm.Instructions{field, asm.Add.Imm(asm.R1, 16), deref, end}, "a load at instruction 2"},
		"through a number plus it": {
			asm.Instructions{field, asm.Mov.Imm(asm.R2, 4), asm.Add.Reg(asm.R2, asm.R1), asm.Mov.Reg(asm.R1, asm.R2), deref, end}, "a load at instruction 4",
		},
		"through what it points to":                            {asm.Instructions{lookup, result, field, deref, end}, "a load at instruction 3"},
		"through a value of a map":                             {asm.Instructions{lookup, result, deref, end}, ""},
		"through what a helper of the kernel's memory returns": {asm.Instructions{foreign, result, deref, end}, "a load at instruction 2"},
		"through what a kfunc returns":                         {asm.Instructions{kfuncCall("foreign"), result, deref, end}, "a load at instruction 2"},
		"through memory of the program's own, by a kfunc":      {asm.Instructions{kfuncCall("own"), result, deref, end}, ""},
		"a narrow field of the context is a number":            {asm.Instructions{asm.LoadMem(asm.R1, asm.R1, 0, asm.Word), zero, end}, ""},
		"a global variable":                                    {asm.Instructions{asm.LoadMapValue(asm.R1, 0, 0), deref, end}, ""},
		"the description of a map":                             {asm.Instructions{asm.LoadMapPtr(asm.R1, 0), deref, end}, "a load at instruction 1"},
		"a call that copies memory of the kernel":              {asm.Instructions{foreign, result, copies, zero, end}, "a call at instruction 2 that copies it"},
		"by another of its arguments": {
			asm.Instructions{foreign, asm.Mov.Reg(asm.R3, asm.R0), asm.Mov.Reg(asm.R1, asm.RFP), copies, zero, end}, "a call at instruction 3 that copies it",
		},
		"by an argument that it does not copy": {
			asm.Instructions{foreign, asm.Mov.Reg(asm.R2, asm.R0), asm.Mov.Reg(asm.R1, asm.RFP), asm.Mov.Imm(asm.R3, 0), copies, zero, end}, "",
		},
		"a call that copies a value of a map": {asm.Instructions{lookup, result, asm.Mov.Imm(asm.R3, 0), copies, zero, end}, ""},
		"a call that copies the description of a map": {
			asm.Instructions{asm.LoadMapPtr(asm.R1, 0), asm.Mov.Imm(asm.R3, 0), copies, zero, end}, "a call at instruction 2 that copies it",
		},
		"a call that takes a map": {asm.Instructions{asm.LoadMapPtr(asm.R1, 0), lookup, zero, end}, ""},
		"a variable of the kernel": {
			asm.Instructions{asm.LoadImm(asm.R1, 0, asm.DWord).WithReference("runqueues"), deref, end}, "a load at instruction 1",
		},
		"after it was on the stack":              {asm.Instructions{field, spill, lookup, reload, deref, end}, "a load at instruction 4"},
		"a value of a map that was on the stack": {asm.Instructions{lookup, result, spill, foreign, reload, deref, end}, ""},
		"the context that was on the stack":      {asm.Instructions{spill, foreign, reload, deref, end}, ""},
		"a number took its place on the stack":   {asm.Instructions{field, spill, asm.StoreImm(asm.RFP, -8, 0, asm.Word), reload, zero, end}, ""},
		"on the stack at a place that is not known": {asm.Instructions{lookup, result, spill, asm.Mov.Reg(asm.R6, asm.RFP), asm.Add.Reg(asm.R6, asm.R2), foreign,
			asm.StoreMem(asm.R6, 0, asm.R0, asm.DWord), reload, deref, end}, "a load at instruction 8"},
		"on one of two ways": {
			asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), lookup, result, jump(asm.JEq, 2), asm.Mov.Reg(asm.R1, asm.R6), field, deref, end}, "a load at instruction 6",
		},
		"a number on the other way": {asm.Instructions{lookup, result, jump(asm.JEq, 1), asm.Mov.Imm(asm.R1, 0), deref, end}, ""},
		"in the next round of a loop": {
			asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), lookup, result, deref, asm.Mov.Reg(asm.R1, asm.R6), field, jump(asm.JEq, -4), zero, end},
			"a load at instruction 3",
		},
		"in code that nothing reaches":         {asm.Instructions{zero, end, field, deref, end}, ""},
		"after a jump over a wide instruction": {asm.Instructions{field, jump(asm.Ja, 2), asm.LoadMapPtr(asm.R1, 0), deref, end}, "a load at instruction 3"},
		"by a call of a register": {
			asm.Instructions{{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call).SetSource(asm.RegSource)}, result, deref, end}, "a load at instruction 2",
		},
		"in a function that gets it":               {asm.Instructions{field, call("f"), zero, end, at("f", deref), end}, "a load at instruction 4"},
		"in a function that gets a value of a map": {asm.Instructions{lookup, result, call("f"), zero, end, at("f", deref), end}, ""},
		"in a function that gets the stack":        {asm.Instructions{passed, asm.Add.Imm(asm.R1, -16), call("f"), zero, end, at("f", deref), end}, ""},
		"a function returns it": {
			asm.Instructions{field, call("f"), result, deref, end, at("f", asm.Mov.Reg(asm.R0, asm.R1)), end}, "a load at instruction 3",
		},
		"a function returns it before ways meet": {asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), lookup, result, jump(asm.JEq, 3), asm.Mov.Reg(asm.R1, asm.R6),
			call("f"), result, deref, end,
			at("f", field), asm.Mov.Reg(asm.R0, asm.R1), end}, "a load at instruction 7"},
		"a function returns a value of a map":         {asm.Instructions{call("f"), result, deref, end, at("f", lookup), end}, ""},
		"a function that the object lacks returns it": {asm.Instructions{call("f"), result, deref, end}, "a load at instruction 2"},
		"a function writes it to the caller's stack": {asm.Instructions{asm.Mov.Reg(asm.R2, asm.R1), lookup, result, spill, passed, asm.Add.Imm(asm.R1, -8),
			call("f"), reload, deref, end,
			at("f", asm.Mov.Reg(asm.R6, asm.R1)), foreign, asm.StoreMem(asm.R6, 0, asm.R0, asm.DWord), zero, end}, "a load at instruction 8"},
		"a callback of a loop gets the stack": {
			asm.Instructions{fn(asm.R2, "f"), asm.Mov.Reg(asm.R3, asm.RFP), asm.FnLoop.Call(), zero, end, at("f", asm.Mov.Reg(asm.R1, asm.R2)), deref, end}, "",
		},
		"a callback of a loop gets it": {
			asm.Instructions{asm.LoadMem(asm.R3, asm.R1, 0, asm.DWord), fn(asm.R2, "f"), asm.FnLoop.Call(), zero, end, at("f", asm.Mov.Reg(asm.R1, asm.R2)), deref, end},
			"a load at instruction 6",
		},
		"a callback gets an entry of a map": {
			asm.Instructions{fn(asm.R2, "f"), asm.FnForEachMapElem.Call(), zero, end, at("f", asm.LoadMem(asm.R0, asm.R3, 0, asm.DWord)), end}, "",
		},
		"a callback gets a part of a process": {
			asm.Instructions{fn(asm.R3, "f"), asm.FnFindVma.Call(), zero, end, at("f", asm.Mov.Reg(asm.R1, asm.R2)), deref, end}, "a load at instruction 5",
		},
		"a callback of a timer gets an entry": {
			asm.Instructions{fn(asm.R2, "f"), asm.FnTimerSetCallback.Call(), zero, end, at("f", asm.Mov.Reg(asm.R1, asm.R3)), deref, end}, "",
		},
		"a callback of a kfunc gets anything":  {asm.Instructions{fn(asm.R2, "f"), kfuncCall("own"), zero, end, at("f", deref), end}, "a load at instruction 4"},
		"a function that nothing calls loads":  {asm.Instructions{zero, end, at("f", deref), end}, "a load at instruction 2"},
		"an atomic operation leaves a number":  {asm.Instructions{lookup, asm.FetchAdd.Mem(asm.R0, asm.R1, asm.DWord, 0), zero, end}, ""},
		"the difference of two is a number":    {asm.Instructions{field, asm.Mov.Reg(asm.R2, asm.R1), asm.Sub.Reg(asm.R1, asm.R2), zero, end}, ""},
		"bits of a pointer are nobody's":       {asm.Instructions{lookup, result, asm.And.Imm(asm.R1, -8), deref, end}, "a load at instruction 3"},
		"a load through a number is not known": {asm.Instructions{asm.Mov.Imm(asm.R1, 5), deref, end}, "a load at instruction 1"},
		"no instructions":                      {nil, "more branches than can be followed"},
	} {
		t.Run(sentence, func(t *testing.T) {
			if got := ForeignLoad(c.insns, rules(Foreign)); got != c.want {
				t.Errorf("ForeignLoad = %q, want %q\n%v", got, c.want, c.insns)
			}
		})
	}
}

// relocated is an instruction that CO-RE changes when it is loaded.
func relocated(ins asm.Instruction) asm.Instruction {
	return btf.WithCORERelocationMetadata(ins, &btf.CORERelocation{})
}

// TestRelocatedInstructionsMayBeAny has programs whose own offsets and constants say nothing.
func TestRelocatedInstructionsMayBeAny(t *testing.T) {
	// A value of a map is at -8, and a pointer of the kernel in R0.
	spilled := asm.Instructions{lookup, result, spill, foreign}
	stack := asm.Instructions{asm.Mov.Reg(asm.R6, asm.RFP), asm.Add.Imm(asm.R6, -16)}
	for sentence, c := range map[string]struct {
		insns asm.Instructions
		reads bool
	}{
		"a store at its own offset": {slices.Concat(spilled, stack, asm.Instructions{asm.StoreMem(asm.R6, 0, asm.R0, asm.DWord), reload, deref, end}), false},
		"a store that is moved": {
			slices.Concat(spilled, stack, asm.Instructions{relocated(asm.StoreMem(asm.R6, 0, asm.R0, asm.DWord)), reload, deref, end}), true,
		},
		"a store of a number that is moved": {
			slices.Concat(spilled, stack, asm.Instructions{relocated(asm.StoreImm(asm.R6, 0, 0, asm.Word)), reload, deref, end}), false,
		},
		"a load that is moved": {
			slices.Concat(spilled, asm.Instructions{asm.StoreMem(asm.RFP, -16, asm.R0, asm.DWord), relocated(reload), deref, end}), true,
		},
		"a narrow load that is moved": {
			slices.Concat(spilled, asm.Instructions{relocated(asm.LoadMem(asm.R2, asm.RFP, -8, asm.Word)), reload, deref, end}), false,
		},
		"an address of the stack that is moved": {slices.Concat(spilled, asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.RFP), relocated(asm.Add.Imm(asm.R6, -16)), asm.StoreMem(asm.R6, 0, asm.R0, asm.DWord), reload, deref, end}), true},
		"the same downwards": {slices.Concat(spilled, asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.RFP), relocated(asm.Sub.Imm(asm.R6, 16)), asm.StoreMem(asm.R6, 0, asm.R0, asm.DWord), reload, deref, end}), true},
		"a store with release that is moved": {
			slices.Concat(spilled, stack, asm.Instructions{relocated(asm.StoreRelease(asm.R6, asm.R0, asm.DWord, 0)), reload, deref, end}), true,
		},
		"a value of a map at any offset":       {asm.Instructions{lookup, result, relocated(deref), end}, false},
		"a field of the context at any offset": {asm.Instructions{relocated(field), zero, end}, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			if got := ForeignLoad(c.insns, rules(Foreign)); (got != "") != c.reads {
				t.Errorf("ForeignLoad = %q\n%v", got, c.insns)
			}
		})
	}
}

func TestARelocatedNumberIsNotKnown(t *testing.T) {
	for sentence, give := range map[string]asm.Instruction{
		"a move":      asm.Mov.Imm(asm.R2, 4),
		"a wide load": asm.LoadImm(asm.R2, 4, asm.DWord),
	} {
		for _, moved := range []bool{false, true} {
			rules, got, ins := rules(Foreign), -1, give
			rules.Called = func(_ int64, arguments [5]Passed) { got = arguments[1].Number }
			if moved {
				ins = relocated(give)
			}
			ForeignLoad(asm.Instructions{ins, lookup, end}, rules)
			if want := map[bool]int{false: 4, true: 0}[moved]; got != want {
				t.Errorf("%s, relocated %v: %d", sentence, moved, got)
			}
		}
	}
}

// TestPointersAreNotLaundered has a pointer of the kernel go over the stack by ways that programs of
// compilers do not go: where a load reads a value of a map by what the walk had there before.
func TestPointersAreNotLaundered(t *testing.T) {
	spilled := asm.Instructions{lookup, result, spill, foreign}
	through := func(insns ...asm.Instruction) asm.Instructions {
		return slices.Concat(spilled, insns, asm.Instructions{reload, deref, end})
	}
	store := asm.StoreMem(asm.R6, -8, asm.R0, asm.DWord)
	for sentence, insns := range map[string]asm.Instructions{
		"by a store with release":                    through(asm.StoreRelease(asm.RFP, asm.R0, asm.DWord, -8)),
		"by a register that may be a value of a map": through(asm.LoadMapValue(asm.R6, 0, 0), jump(asm.JEq, 1), asm.Mov.Reg(asm.R6, asm.RFP), store),
		"by a register that may be the context": append(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)},
			through(jump(asm.JEq, 1), asm.Mov.Reg(asm.R6, asm.RFP), store)...),
		"by a distance from what may be a number": through(asm.Mov.Reg(asm.R6, asm.RFP), asm.Mov.Imm(asm.R7, 0), jump(asm.JEq, 1),
			asm.Mov.Reg(asm.R7, asm.RFP), asm.Sub.Reg(asm.R6, asm.R7), store),
		"by an operation that fetches it": {foreign, asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord), asm.Mov.Imm(asm.R1, 0),
			asm.Xchg.Mem(asm.RFP, asm.R1, asm.DWord, -8), jump(asm.JEq, 2), asm.LoadMapValue(asm.R1, 0, 0), deref, end},
		"by a comparison that fetches it": {foreign, asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord), asm.Mov.Imm(asm.R2, 0),
			asm.CmpXchg.Mem(asm.RFP, asm.R2, asm.DWord, -8), result, jump(asm.JEq, 2), asm.LoadMapValue(asm.R1, 0, 0), deref, end},
		"by an operation that fetches nothing": {foreign, result, asm.AndAtomic.Mem(asm.RFP, asm.R1, asm.DWord, -8), jump(asm.JEq, 2),
			asm.LoadMapValue(asm.R1, 0, 0), deref, end},
		"to a callback that was on the stack": {foreign, asm.Mov.Reg(asm.R3, asm.R0), fn(asm.R2, "f"), jump(asm.JEq, 2), fn(asm.R2, "g"),
			asm.FnLoop.Call(), lookup, asm.Mov.Reg(asm.R2, asm.R0), asm.Call.Label("f"), end,
			at("f", asm.Mov.Reg(asm.R1, asm.R2)), deref, end, at("g", zero), end},
	} {
		t.Run(sentence, func(t *testing.T) {
			if got := ForeignLoad(insns, rules(Foreign)); got == "" {
				t.Errorf("nothing is found\n%v", insns)
			}
		})
	}
}

func TestFieldsOfTheContext(t *testing.T) {
	insns := asm.Instructions{field, deref, end}
	for fields, reads := range map[Memory]bool{Foreign: true, Own: false, Number: true} {
		if got := ForeignLoad(insns, rules(fields)); (got != "") != reads {
			t.Errorf("where fields are %d: %q", fields, got)
		}
	}
	packet := asm.Instructions{asm.LoadMem(asm.R1, asm.R1, 0, asm.Word), deref, end}
	if got := ForeignLoad(packet, rules(Own)); got != "" {
		t.Errorf("a packet is foreign: %s", got)
	}
}

// TestTimeIsBounded has programs with as many branches as they can have.
func TestTimeIsBounded(t *testing.T) {
	var many asm.Instructions
	for range maxPlaces + 1 {
		many = append(many, jump(asm.JEq, 1), asm.Add.Imm(asm.R2, 1), jump(asm.JEq, -2))
	}
	start := time.Now()
	if got := ForeignLoad(append(many, zero, end), rules(Foreign)); !strings.Contains(got, "more branches") {
		t.Errorf("%q", got)
	}
	// Each word of the stack learns of a pointer a round later than the one before it.
	slow := asm.Instructions{asm.LoadMem(asm.R3, asm.R1, 0, asm.DWord), asm.StoreMem(asm.RFP, -8, asm.R3, asm.DWord)}
	for at := int16(-512); at < -8; at += 8 {
		slow = append(slow, asm.LoadMem(asm.R4, asm.RFP, at+8, asm.DWord), asm.StoreMem(asm.RFP, at, asm.R4, asm.DWord))
	}
	slow = append(slow, jump(asm.JEq, int16(-len(slow)+1)), asm.LoadMem(asm.R1, asm.RFP, -512, asm.DWord), deref, end)
	if got := ForeignLoad(slow, rules(Foreign)); got == "" {
		t.Error("a pointer got lost on its way over the stack")
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

func FuzzForeignLoad(f *testing.F) {
	f.Add([]byte{0x79, 0x11, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, code []byte) {
		var insns asm.Instructions
		for i := 0; i+8 <= len(code); i += 8 {
			insns = append(insns,
				asm.Instruction{OpCode: asm.OpCode(code[i]), Dst: asm.Register(code[i+1] & 0xf % registers), Src: asm.Register(code[i+1] >> 4 % registers),
					Offset: int16(code[i+2]) | int16(code[i+3])<<8, Constant: int64(code[i+4])})
		}
		first := ForeignLoad(insns, rules(Foreign))
		if again := ForeignLoad(insns, rules(Foreign)); again != first {
			t.Errorf("%q, and then %q", first, again)
		}
	})
}

func ExampleForeignLoad() {
	fmt.Println(ForeignLoad(asm.Instructions{field, deref, end}, rules(Foreign)))
	// Output: a load at instruction 1
}

// TestCallersAreFollowedInOneOrder: the work for a program is the same each time, which fuzzers rest on.
func TestCallersAreFollowedInOneOrder(t *testing.T) {
	var insns asm.Instructions
	var callers []int
	for i := range 32 {
		insns = append(insns, asm.Mov.Imm(asm.R0, 0).WithSymbol(fmt.Sprint("caller", i)))
		callers = append(callers, i)
	}
	w, ok := newWalk(append(insns, asm.Return().WithSymbol("called")), rules(Number))
	if !ok {
		t.Fatal("it is not followed")
	}
	for i := range callers {
		w.places[i].seen, w.functions[len(callers)].callers[i] = true, true
	}
	if w.leave(len(callers), value{memory: Own}); !slices.Equal(w.changed, callers) {
		t.Errorf("callers are followed in the order %v", w.changed)
	}
}
