package bytecode

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/corpus"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// pending is an instruction that a load relocates.
func pending(ins asm.Instruction) asm.Instruction {
	return btf.WithCORERelocationMetadata(ins, &btf.CORERelocation{})
}

func TestARelocationStandsWhereItApplies(t *testing.T) {
	jump := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JEq).SetSource(asm.ImmSource), Dst: asm.R1, Offset: 1}
	for sentence, c := range map[string]struct {
		ins     asm.Instruction
		applies bool
	}{
		"a load":                   {asm.LoadMem(asm.R0, asm.RFP, -8, asm.Word), true},
		"a store":                  {asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord), true},
		"a store of a number":      {asm.StoreImm(asm.RFP, -8, 1, asm.Word), true},
		"an atomic operation":      {asm.AddAtomic.Mem(asm.RFP, asm.R1, asm.DWord, -8), true},
		"a number":                 {asm.Mov.Imm(asm.R0, 1), true},
		"a number of 32 bits":      {asm.Mov.Imm32(asm.R0, 1), true},
		"a sum with a number":      {asm.Add.Imm(asm.R0, 1), true},
		"a wide number":            {asm.LoadImm(asm.R0, 1, asm.DWord), true},
		"a map":                    {asm.LoadMapPtr(asm.R0, 0).WithReference("m"), false},
		"a variable of the kernel": {asm.LoadImm(asm.R0, 0, asm.DWord).WithReference("jiffies"), false},
		"a sum of registers":       {asm.Add.Reg(asm.R0, asm.R1), false},
		"a swap":                   {asm.HostTo(asm.BE, asm.R0, asm.Word), false},
		"an old load of a packet":  {asm.LoadAbs(0, asm.Word), false},
		"a call":                   {asm.FnGetPrandomU32.Call(), false},
		"a jump":                   {jump, false},
		"an end":                   {asm.Return(), false},
	} {
		if err := checkRelocated(&c.ins, 0); err != nil {
			t.Errorf("%s that is not relocated: %v", sentence, err)
		}
		ins := pending(c.ins)
		err := checkRelocated(&ins, 7)
		if (err == nil) != c.applies || err != nil && !strings.Contains(err.Error(), "instruction 7 denied by bytecode/relocated-instruction") {
			t.Errorf("%s: %v", sentence, err)
		}
	}
}

// somehow is a program as a kernel of any type information may make it: each pending instruction has
// any offset or number, or stays as it is, where the kernel lacks what it reads.
func somehow(insns asm.Instructions, random *rand.Rand) asm.Instructions {
	out := slices.Clone(insns)
	for i := range out {
		ins := &out[i]
		if btf.CORERelocationMetadata(ins) == nil || random.IntN(8) == 0 {
			continue
		}
		*ins = btf.WithCORERelocationMetadata(*ins, nil)
		n := int64(random.IntN(80)-72) * 8
		switch random.IntN(8) {
		case 0, 1:
			n = int64(random.Uint64())
		case 2:
			n = offsetOfSocket
		}
		switch class := ins.OpCode.Class(); {
		case class.IsALU():
			ins.Constant = int64(int32(n))
		case class == asm.LdClass:
			ins.Constant = n
		default:
			ins.Offset = int16(n)
		}
	}
	return out
}

// checkWithin fails where a program does on some kernel what its object was not found to do.
func checkWithin(t *testing.T, object *objectfile.Object, name string, random *rand.Rand) {
	t.Helper()
	found, err := inspectProgram(object, name)
	if err != nil {
		return
	}
	ps := object.Spec.Programs[name]
	made := ps.Copy()
	made.Instructions = somehow(ps.Instructions, random)
	relocated := *object
	relocated.Spec = &ebpf.CollectionSpec{Maps: object.Spec.Maps, Types: object.Spec.Types, Programs: map[string]*ebpf.ProgramSpec{name: made}}
	loaded, err := inspectProgram(&relocated, name)
	if err != nil {
		t.Fatalf("%v\n%v", err, made.Instructions)
	}
	calls, has := Seal([]Program{found.facts})
	if does, where := loaded.facts.Beyond(calls, has); does != "" && !strings.HasPrefix(where, "more ") {
		t.Errorf("%s %s (%s), and was found to call %v and to do %v\n%v\nof\n%v", name, does, where, calls, has[name], made.Instructions, ps.Instructions)
	}
	all, before, after := decisions(), reflect.ValueOf(found.facts), reflect.ValueOf(loaded.facts)
	for i := range before.NumField() {
		fact := before.Type().Field(i).Name
		if holds := all[fact].holds; holds != nil && !holds(before.Field(i), after.Field(i)) {
			t.Errorf("%s of %s is %v, and was found to be %v\n%v\nof\n%v", fact, name, after.Field(i), before.Field(i), made.Instructions, ps.Instructions)
		}
	}
	for _, need := range loaded.needs {
		if !slices.Contains(found.needs, need) {
			t.Errorf("%s needs %v, and was found to need %v", name, need, found.needs)
		}
	}
}

// decision says why a fact of a program on a node is within that of its object: holds compares both, or the
// example has the fact and an intent seals it.
type decision struct {
	holds   func(found, loaded reflect.Value) bool
	example *Program
}

// decisions has one for each fact of a program.
func decisions() map[string]decision {
	all := map[string]decision{
		"Helpers":             {example: &Program{Helpers: []string{"bpf_loop"}}},
		"UnknownHelpers":      {example: &Program{UnknownHelpers: []int64{999}}},
		"Kfuncs":              {example: &Program{Kfuncs: []string{"bpf_cpumask_create"}}},
		"Ksyms":               {example: &Program{Ksyms: []string{"jiffies"}}},
		"RepeatsBy":           {example: &Program{RepeatsBy: []string{mayGoto}}},
		"ReadsKernelMemory":   {example: &Program{ReadsKernelMemory: true, ReadsKernelMemoryBy: []string{"a load at instruction 3"}}},
		"ReadsKernelMemoryBy": {example: &Program{ReadsKernelMemoryBy: []string{"variable jiffies"}}},
		"ReadsRegistersBy":    {example: &Program{ReadsRegistersBy: []hook.Registers{hook.InContext}}},
		"WritesRegisters":     {example: &Program{WritesRegisters: true}},
		"ReadsPacketSocket":   {example: &Program{ReadsPacketSocket: true}},
		"LiftsRightsBy":       {example: &Program{LiftsRightsBy: []string{"returning 3"}}},
		// A node may find more: the kernel does not load the program there.
		"Obstacles": {holds: func(_, _ reflect.Value) bool { return true }},
		// They are warned of alone: the agent bounds what it loads.
		"Answers": {holds: func(_, _ reflect.Value) bool { return true }},
	}
	// Builds count differently, so that no intent has these. An agent counts again for namespaces.
	for _, fact := range []string{"Translated", "Rewrites", "LoadCost"} {
		all[fact] = decision{holds: func(found, loaded reflect.Value) bool {
			return found.CanInt() && loaded.Int() <= found.Int() || found.CanUint() && loaded.Uint() <= found.Uint()
		}}
	}
	// What no offset and no number changes.
	for _, fact := range []string{"Name", "Section", "Hook", "Target", "Type", "AttachType", "Sleepable", "Frags", "Instructions", "Subprograms", "Unresolved",
		"Maps", "License", "GPLCompatible", "GPLOnly", "Subject", "AsyncCallbacks", "PoisonedCalls"} {
		all[fact] = decision{holds: func(found, loaded reflect.Value) bool {
			return reflect.DeepEqual(found.Interface(), loaded.Interface())
		}}
	}
	return all
}

// TestEachFactIsSealedOrHoldsOnEveryKernel fails for a fact without a decision, and for one that is said to be
// sealed and is not.
func TestEachFactIsSealedOrHoldsOnEveryKernel(t *testing.T) {
	all := decisions()
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Program]()) {
		d, decided := all[field.Name]
		if delete(all, field.Name); !decided {
			t.Errorf("a relocation may change Program.%s: seal it (see Seal), or say in decisions why none does", field.Name)
		}
		if d.example == nil {
			continue
		}
		if reflect.ValueOf(*d.example).FieldByIndex(field.Index).IsZero() {
			t.Errorf("the example of %s has no such fact", field.Name)
		}
		calls, has := Seal([]Program{{}})
		if does, _ := d.example.Beyond(calls, has); does == "" {
			t.Errorf("a program with %s is within an intent without", field.Name)
		}
		if does, _ := d.example.Beyond(Seal([]Program{*d.example})); does != "" {
			t.Errorf("a program that %s is not within its own intent", does)
		}
	}
	for name := range all {
		t.Errorf("there is no fact %s", name)
	}
	// Of an object, these: its programs, which are compared, and what offsets and numbers in them do not change. What
	// its programs need of a kernel is compared, too.
	const known = "Version Inspector License ByteOrder BTF CORE Programs Maps Variables MemoryBytes CPUs MinKernel MinKernelReasons"
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Facts]()) {
		if !slices.Contains(strings.Fields(known), field.Name) {
			t.Errorf("Facts.%s: say whether a relocation may change it, and seal it then", field.Name)
		}
	}
}

// TestAnIntentOfAnotherBuildStillCounts has intents with fewer and with more facts than this build seals.
func TestAnIntentOfAnotherBuildStillCounts(t *testing.T) {
	p := Program{
		Name: "p", Helpers: []string{"bpf_loop"}, ReadsKernelMemoryBy: []string{"a load at instruction 3"}, WritesRegisters: true, ReadsPacketSocket: true,
	}
	calls, has := Seal([]Program{p})
	has["p"] = slices.Clip(has["p"])
	if want := []string{"calls 0", "a load", "fact writesRegisters", "fact readsPacketSocket"}; !slices.Equal(has["p"], want) || len(calls) != 5 {
		t.Fatalf("%v is sealed, and of the program %v", calls, has)
	}
	for sentence, c := range map[string]struct {
		calls, has []string
		want       string
	}{
		"one before flags were sealed": {[]string{"bpf_loop"}, []string{"a load"}, ""},
		"one that knew the first flag": {[]string{"bpf_loop", "fact writesRegisters"}, []string{"a load"}, "writes registers of a task"},
		"one that allows the first":    {[]string{"bpf_loop", "fact writesRegisters"}, []string{"a load", "fact writesRegisters"}, ""},
		"a later one":                  {append(calls, "fact flies"), append(has["p"], "flies"), ""},
		"a later one that does not": {append(calls, "fact flies"), []string{"calls 0", "fact flies", "a load", "fact writesRegisters"},
			"reads the socket of a packet"},
		"one that lacks a call":                     {[]string{"fact writesRegisters"}, has["p"], "uses bpf_loop"},
		"one in which another program has the call": {calls, has["p"][1:], "uses bpf_loop"},
		"one with places beyond its calls":          {calls, append(has["p"], "calls 5"), "uses bpf_loop"},
		"one with a place of no number":             {calls, append(has["p"], "calls 0 -1"), "uses bpf_loop"},
		"one with a number of no computer":          {calls, append(has["p"], "calls 99999999999999999999999"), "uses bpf_loop"},
		"one with places of nothing":                {calls, append(has["p"], "calls "), "uses bpf_loop"},
		"one with a list that ends early":           {calls, append(has["p"], "calls 0 "), "uses bpf_loop"},
		"one in which no call is another's name":    {calls, append(has["p"][1:], "calls"), "uses bpf_loop"},
	} {
		if does, _ := p.Beyond(c.calls, map[string][]string{"p": c.has}); does != c.want {
			t.Errorf("%s: the program is denied as it %q, want %q", sentence, does, c.want)
		}
	}
}

// TestAProgramHasNoCallOfAnother has two programs in one object, of which the first calls after a load what only the second called before.
func TestAProgramHasNoCallOfAnother(t *testing.T) {
	one, other := Program{Name: "one", Helpers: []string{"bpf_loop"}}, Program{Name: "other", Helpers: []string{"bpf_probe_read_user"}}
	calls, has := Seal([]Program{one, other})
	for _, p := range []Program{one, other} {
		if does, _ := p.Beyond(calls, has); does != "" {
			t.Errorf("%s is denied as it %s", p.Name, does)
		}
	}
	one.Helpers = append(one.Helpers, other.Helpers...)
	if does, _ := one.Beyond(calls, has); does != "uses bpf_probe_read_user" {
		t.Errorf("a program with a call of another is denied as it %q", does)
	}
}

// written is a program out of bytes, four for each instruction: what it is, its registers, its
// number, and in the last one whether it is relocated. Its second half is a function.
func written(code []byte) asm.Instructions {
	var insns asm.Instructions
	half := len(code) / 8 * 4
	for at := 0; at+4 <= len(code); at += 4 {
		a, b := asm.Register(code[at+1]%11), asm.Register(code[at+1]/11%11)
		number := int16(code[at+2]%72) - 64
		ins := instruction(code[at], a, b, number*8)
		if takesRelocation(&ins) && code[at+3]%2 == 0 {
			ins = pending(ins)
		}
		if at == half && at > 0 {
			insns = append(insns, asm.Mov.Imm(asm.R0, 0), asm.Return())
			ins = ins.WithSymbol("g")
		}
		insns = append(insns, ins)
	}
	insns = append(insns, asm.Mov.Imm(asm.R0, 0), asm.Return())
	insns[0] = insns[0].WithSymbol("f")
	return insns
}

// instruction is one of many.
func instruction(kind byte, a, b asm.Register, number int16) asm.Instruction {
	ahead := func(op asm.JumpOp) asm.Instruction {
		return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(op).SetSource(asm.ImmSource), Dst: a, Offset: number / 8 % 4}
	}
	all := []asm.Instruction{
		asm.Mov.Reg(a, b), asm.Mov.Reg(a, asm.RFP), asm.Mov.Imm(a, int32(number)), asm.Mov.Imm32(a, int32(number)), asm.LoadImm(a, int64(number), asm.DWord),
		asm.Add.Imm(a, int32(number)), asm.Sub.Imm(a, int32(number)), asm.Add.Reg(a, b), asm.Sub.Reg(a, b), asm.And.Imm(a, int32(number)),
		asm.LoadMem(a, b, number, asm.DWord), asm.LoadMem(a, asm.RFP, number, asm.DWord), asm.LoadMem(a, b, number, asm.Word),
		asm.StoreMem(a, number, b, asm.DWord), asm.StoreMem(asm.RFP, number, b, asm.DWord), asm.StoreMem(a, number, b, asm.Word),
		asm.StoreImm(a, number, 0, asm.Word),
		asm.Xchg.Mem(a, b, asm.DWord, number), asm.AddAtomic.Mem(a, b, asm.DWord, number), asm.LoadAcquire(a, b, asm.DWord, number),
		asm.StoreRelease(a, b, asm.DWord, number), asm.LoadMapValue(a, 0, 0).WithReference("m"), asm.LoadMapPtr(a, 0).WithReference("m"),
		asm.FnMapLookupElem.Call(), asm.FnMapUpdateElem.Call(), asm.FnGetCurrentTaskBtf.Call(), asm.FnPerfEventOutput.Call(), asm.FnXdpAdjustHead.Call(),
		asm.FnGetStack.Call(), asm.FnProbeReadKernel.Call(), asm.FnLoop.Call(), asm.FnForEachMapElem.Call(), asm.Call.Label("g"),
		{OpCode: asm.LoadImmOp(asm.DWord), Dst: a, Src: asm.PseudoFunc, Constant: -1}, ahead(asm.JEq), ahead(asm.Ja),
	}
	ins := all[int(kind)%len(all)]
	if ins.Src == asm.PseudoFunc && ins.OpCode.IsDWordLoad() {
		ins = ins.WithReference("g")
	}
	return ins
}

// FuzzFactsHoldForEveryKernel holds what a sealed intent says of programs against what they are on
// nodes: what CO-RE makes of one does no more than its object was found to do.
func FuzzFactsHoldForEveryKernel(f *testing.F) {
	f.Add(uint64(1), []byte{23, 0, 0, 1, 0, 34, 0, 1, 14, 0, 0, 1, 25, 0, 0, 1, 13, 10, 8, 0, 11, 1, 0, 1, 10, 11, 64, 1, 0, 0, 0, 1})
	f.Add(uint64(2), []byte{2, 2, 70, 0, 27, 0, 0, 1, 10, 12, 0, 0, 14, 0, 9, 1, 32, 0, 0, 1, 12, 11, 0, 0, 0, 0, 0, 1, 10, 11, 66, 0})
	// A filter that loads a field of its context, and a probe that stores to one, at offsets that CO-RE says.
	f.Add(uint64(3), bytes.Repeat([]byte{10, 13, 0, 8}, 12))
	f.Add(uint64(4), bytes.Repeat([]byte{13, 23, 0, 2}, 12))
	objects := relocatedObjects(f)
	f.Fuzz(func(t *testing.T, seed uint64, code []byte) {
		random := rand.New(rand.NewPCG(seed, 0))
		object := objects[seed%uint64(len(objects))]
		// In one order, so that a run can be repeated: a fuzzer tries again what reached a new line.
		for _, name := range slices.Sorted(maps.Keys(object.Spec.Programs)) {
			checkWithin(t, object, name, random)
		}
		if len(code) < 4 || len(code) > 4<<8 {
			return
		}
		kinds := []ebpf.ProgramType{ebpf.XDP, ebpf.Kprobe, ebpf.Tracing, ebpf.TracePoint, ebpf.SchedCLS}
		made := &objectfile.Object{Spec: &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{"m": {}}, Programs: map[string]*ebpf.ProgramSpec{
			"f": {Name: "f", Type: kinds[int(code[3]/2)%len(kinds)], License: "GPL", Instructions: written(code)},
		}}}
		for range 4 {
			checkWithin(t, made, "f", random)
		}
	})
}

// relocatedObjects are objects with relocations.
func relocatedObjects(tb testing.TB) []*objectfile.Object {
	tb.Helper()
	bodies := [][]byte{}
	for _, name := range []string{"tp_btf_core_hidden", "xdp_core_negative", "tcx_core_socket", "xdp_core", "tp_poisoned", "raw_tp_core_local"} {
		bodies = append(bodies, programs.Object(name))
	}
	for _, name := range []string{"core_relocs", "fentry", "iter_task"} {
		body, err := corpus.Objects.ReadFile("testdata/" + name + ".o")
		if err != nil {
			tb.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	var all []*objectfile.Object
	for _, body := range bodies {
		object, err := objectfile.Read(body)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, object)
	}
	return all
}

// TestFactsHoldForEveryKernel tries many kernels where no fuzzer runs.
func TestFactsHoldForEveryKernel(t *testing.T) {
	for i, object := range relocatedObjects(t) {
		random := rand.New(rand.NewPCG(uint64(i), 1))
		for _, name := range slices.Sorted(maps.Keys(object.Spec.Programs)) {
			for range 100 {
				checkWithin(t, object, name, random)
			}
		}
	}
}

// TestWhatRelocationsHideIsFound has the facts of programs that look harmless as they are signed.
func TestWhatRelocationsHideIsFound(t *testing.T) {
	for object, by := range map[string]string{"tp_btf_core_hidden": "a load", "xdp_core_negative": "bpf_xdp_adjust_head"} {
		f := facts(t, programs.Object(object))
		if reads := f.Programs[0].KernelReads(); len(reads) != 1 || reads[0].By != by || !f.Programs[0].ReadsKernelMemory {
			t.Errorf("%s reads by %v, want %s", object, reads, by)
		}
	}
}

// TestAnAddressIsSetAlsoByCORE has programs that set an address of their tasks through a structure of vmlinux.h: what they set by the
// offsets in the object, and what a node makes of them.
func TestAnAddressIsSetAlsoByCORE(t *testing.T) {
	inspect := func(store asm.Instruction) Program {
		insns := asm.Instructions{asm.Mov.Imm(asm.R2, 0).WithSymbol("f"), store, asm.Mov.Imm(asm.R0, 1), asm.Return()}
		p, err := inspectProgram(&objectfile.Object{Spec: &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{
			"f": {Name: "f", Type: ebpf.CGroupSockAddr, License: "GPL", Instructions: insns},
		}}}, "f")
		if err != nil {
			t.Fatal(err)
		}
		return p.facts
	}
	const userIP4, msgSrcIP6 = 4, 44
	for offset, lifts := range map[int16]bool{userIP4: false, msgSrcIP6: true} {
		if p := inspect(pending(asm.StoreMem(asm.R1, offset, asm.R2, asm.Word))); (len(p.LiftsRightsBy) > 0) != lifts {
			t.Errorf("a store at %d lifts rights by %q, want %v", offset, p.LiftsRightsBy, lifts)
		}
	}
	calls, has := Seal([]Program{inspect(pending(asm.StoreMem(asm.R1, userIP4, asm.R2, asm.Word)))})
	if does, _ := inspect(asm.StoreMem(asm.R1, msgSrcIP6, asm.R2, asm.Word)).Beyond(calls, has); does != "gives tasks what they have no capability for" {
		t.Errorf("a node that leads the store to a source address denies it as it %q", does)
	}
}
