package chain_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/test/harness/need"
)

// assembled is a member written in instructions, without ELF, types or source
// lines, the way generated programs come.
func assembled(key string, insns asm.Instructions, maps map[string]*ebpf.MapSpec) chain.Member {
	return chain.Member{
		Key: key, Application: key, Program: "prog", ProceedOn: 1 << pass,
		Facts:  bytecode.Program{License: "MIT"},
		Object: &ebpf.CollectionSpec{Maps: maps, Programs: map[string]*ebpf.ProgramSpec{"prog": {Name: "prog", Type: ebpf.XDP, License: "MIT", Instructions: insns}}},
	}
}

func TestLabelsOfMembersDoNotMeet(t *testing.T) {
	// Every member jumps to a label of the same name, one of them that of the
	// dispatcher.
	jump := func(label string, verdict int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Imm(asm.R0, verdict),
			asm.JEq.Imm(asm.R0, verdict, label),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return().WithSymbol(label),
		}
	}
	l := load(t,
		assembled("first", jump("exit", int32(pass)), nil),
		assembled("second", jump("exit", int32(pass)), nil),
		assembled("third", jump("call-1", int32(tx)), nil))
	if got := l.run(t, 1); got != tx {
		t.Errorf("verdict is %d, want %d", got, tx)
	}
	if diff := cmp.Diff([]uint64{1, 1, 1}, l.runs(t)); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

func TestMapsOfMembersDoNotMeet(t *testing.T) {
	maps := func() map[string]*ebpf.MapSpec {
		return map[string]*ebpf.MapSpec{chain.CountersName: {Name: "own", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}}
	}
	// Writes a number into a map that is called like the chain's counters.
	write := func(n int32) asm.Instructions {
		return asm.Instructions{
			asm.LoadMapValue(asm.R1, 0, 0).WithReference(chain.CountersName),
			asm.StoreImm(asm.R1, 0, int64(n), asm.Word),
			asm.Mov.Imm(asm.R0, int32(pass)),
			asm.Return(),
		}
	}
	l := load(t, assembled("first", write(11), maps()), assembled("second", write(22), maps()))
	l.run(t, 1)
	for application, want := range map[string]uint64{"first": 11, "second": 22} {
		var got uint64
		if err := l.apps[application].Maps[chain.CountersName].Lookup(uint32(0), &got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("the map of %s holds %d, want %d", application, got, want)
		}
	}
	if diff := cmp.Diff([]uint64{1, 1}, l.runs(t)); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

func TestCountsOfAClosedMapSaySo(t *testing.T) {
	l := load(t, member(t, "a", "xdp_pass"))
	counters, err := l.Counters.Clone()
	if err != nil {
		t.Fatal(err)
	}
	if err := counters.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := chain.ReadCounts(counters, 1); err == nil || !strings.Contains(err.Error(), "read chain counters") {
		t.Errorf("got error %v, want one that says what was read", err)
	}
}

// TestAMemberWithTooManyBranchesIsNamed: the library drops the verifier's words about it, and the others stay.
func TestAMemberWithTooManyBranchesIsNamed(t *testing.T) {
	need.Kernel(t)
	insns := asm.Instructions{asm.FnGetPrandomU32.Call()}
	for i := range int32(8300) {
		insns = append(insns, asm.JEq.Imm(asm.R0, i, fmt.Sprintf("branch%d", i+1)).WithSymbol(fmt.Sprintf("branch%d", i)), asm.Mov.Imm(asm.R1, 0))
	}
	insns = append(insns, asm.Mov.Imm(asm.R0, 2).WithSymbol("branch8300"), asm.Return())
	members := joined(t, member(t, "calm", "xdp_pass"), assembled("branching", insns, nil))
	_, err := chain.Load(members, func(chain.MapRef) (*ebpf.Map, error) { return nil, nil }, ebpf.ProgramOptions{})
	refusal := asRefusal(t, err)
	if refusal.Member != "branching" || refusal.Limit != chain.LimitInstructions || strings.Contains(err.Error(), "LogSizeStart") {
		t.Errorf("got %q for %s: %v", refusal.Limit, refusal.Member, err)
	}
}

func TestARejectionWithoutWordsForItKeepsTheWholeLog(t *testing.T) {
	// Loads alone in no chain at all: the caller did not try.
	wild := assembled("wild", asm.Instructions{
		asm.LoadMem(asm.R0, asm.R1, 0, asm.Word),
		asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord),
		asm.Return(),
	}, nil)
	need.Kernel(t)
	_, err := chain.Load(joined(t, member(t, "calm", "xdp_pass"), wild), func(chain.MapRef) (*ebpf.Map, error) { return nil, nil }, ebpf.ProgramOptions{})
	refusal := asRefusal(t, err)
	if refusal.Member != "wild" || refusal.Limit != chain.LimitVerifier {
		t.Errorf("got %q for %s, want %q for wild", refusal.Limit, refusal.Member, chain.LimitVerifier)
	}
	if !strings.Contains(err.Error(), "invalid access to packet") {
		t.Errorf("error %q lacks the verifier's words", err)
	}
}

// spender is a member that refers to so many maps of its own.
func spender(key string, maps int) chain.Member {
	specs := map[string]*ebpf.MapSpec{}
	var insns asm.Instructions
	for i := range maps {
		name := fmt.Sprintf("m%d", i)
		specs[name] = &ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
		insns = append(insns, asm.LoadMapPtr(asm.R1, 0).WithReference(name))
	}
	return assembled(key, append(insns, asm.Mov.Imm(asm.R0, int32(pass)), asm.Return()), specs)
}

func TestTheOwnerComesFirstAndGivesWay(t *testing.T) {
	for sentence, tc := range map[string]struct {
		maps  int
		owned bool
	}{
		"few maps":                   {1, true},
		"room for the owner only":    {chain.MaxMaps - 2, true},
		"the last map is a member's": {chain.MaxMaps - 1, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			members := []chain.Member{assembled("calm", asm.Instructions{asm.Mov.Imm(asm.R0, int32(pass)), asm.Return()}, nil), spender("big", tc.maps)}
			owner := &ebpf.MapSpec{Name: "owner.rodata", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
			linked, err := chain.Link(members, chain.Options{Owner: owner})
			if err != nil {
				t.Fatal(err)
			}
			if linked.Usage.Maps != 1+tc.maps || (linked.Owner != nil) != tc.owned {
				t.Errorf("the chain uses %d maps, and its owner is %v", linked.Usage.Maps, linked.Owner)
			}
			if got := firstMap(t, linked, members); (got == "owner.rodata") != tc.owned {
				t.Errorf("the first map is %s", got)
			}
		})
	}
}

// firstMap loads a chain and tells the name of the first map the kernel lists.
func firstMap(t *testing.T, linked *chain.Linked, members []chain.Member) string {
	t.Helper()
	need.Kernel(t)
	l := live{apps: map[string]*ebpf.Collection{}}
	for _, m := range members {
		coll, err := ebpf.NewCollection(m.Object.Copy())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(coll.Close)
		l.apps[m.Application] = coll
	}
	loaded, err := chain.Load(linked, l.open, ebpf.ProgramOptions{})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { _ = loaded.Close() })
	info, err := loaded.Program.Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	first, err := ebpf.NewMapFromID(ids[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	about, err := first.Info()
	if err != nil {
		t.Fatal(err)
	}
	return about.Name
}
