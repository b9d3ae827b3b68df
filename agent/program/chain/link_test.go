package chain_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/program/chain"
)

const fragsFlag = 1 << 5

// inFrags makes the member take packets of several buffers.
func inFrags(_ testing.TB, m *chain.Member) { m.Object.Programs[m.Program].Flags |= fragsFlag }

// of puts the member into an application.
func of(application string) edit {
	return func(_ testing.TB, m *chain.Member) { m.Application = application }
}

// both are two members in one slice with others.
func both(groups ...[]chain.Member) []chain.Member { return slices.Concat(groups...) }

// rejected are members that do not fit, and what is said about it.
type refused struct {
	members []chain.Member
	edit    edit
	want    chain.Rejection
}

// check links the members and compares the rejection with what is wanted, in
// fields and in words. The edit, which may take long, changes the last member.
func (r refused) check(t *testing.T) {
	t.Helper()
	if r.edit != nil {
		if testing.Short() {
			t.Skip("SKIPPED: takes long on an emulated machine")
		}
		r.edit(t, &r.members[len(r.members)-1])
	}
	_, err := chain.Link(r.members, chain.Options{})
	refusal := asRefusal(t, err)
	if diff := cmp.Diff(r.want, *refusal); diff != "" {
		t.Errorf("refusal (-want +got):\n%s", diff)
	}
	for _, part := range []string{r.want.Member, string(r.want.Limit), r.want.Reason, r.want.Fix} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

func asRefusal(t *testing.T, err error) *chain.Rejection {
	t.Helper()
	var refusal *chain.Rejection
	if !errors.As(err, &refusal) {
		t.Fatalf("got error %v, want a refusal", err)
	}
	return refusal
}

// verdict is a chain of one small member.
func verdict(t *testing.T, key string, edits ...edit) []chain.Member {
	t.Helper()
	return []chain.Member{member(t, key, "xdp_verdict", edits...)}
}

func TestLinkRefusesWhatNoChainHolds(t *testing.T) {
	for name, tc := range map[string]refused{
		"a program of another type": {
			members: both(verdict(t, "a"), verdict(t, "b", func(_ testing.TB, m *chain.Member) { m.Object.Programs["xdp_verdict"].Type = ebpf.SchedCLS })),
			want: chain.Rejection{Member: "b", Limit: chain.LimitType,
				Reason: "program xdp_verdict is of type SchedCLS, and an XDP chain holds XDP programs",
				Fix:    `put it into section "xdp"`},
		},
		"a program for a CPU map": {
			members: verdict(t, "a", func(_ testing.TB, m *chain.Member) {
				m.Object.Programs["xdp_verdict"].AttachType = ebpf.AttachXDPCPUMap
			}),
			want: chain.Rejection{Member: "a", Limit: chain.LimitType,
				Reason: "program xdp_verdict is made for XDPCPUMap, not for an interface",
				Fix:    `put it into section "xdp" or "xdp.frags"`},
		},
		"a program that throws": {
			members: append(verdict(t, "a"), assembled("b", asm.Instructions{
				asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall, Constant: -1}.WithReference("bpf_throw"),
				asm.Return(),
			}, nil)),
			want: chain.Rejection{Member: "b", Limit: chain.LimitType,
				Reason: "program prog calls bpf_throw, and an exception leaves the whole chain, not the member",
				Fix:    "return a verdict in place of throwing"},
		},
		"a program that asks for flags of its own": {
			members: verdict(t, "a", func(_ testing.TB, m *chain.Member) { m.Object.Programs["xdp_verdict"].Flags = fragsFlag | 1<<6 }),
			want: chain.Rejection{Member: "a", Limit: chain.LimitType,
				Reason: "program xdp_verdict asks for load flags 0x40, which would bind every member of the chain",
				Fix:    "load it without them"},
		},
	} {
		t.Run(name, tc.check)
	}
}

func TestLinkRefusesLicencesThatDoNotGoTogether(t *testing.T) {
	for name, tc := range map[string]refused{
		"a closed program that needs the GPL for itself": {
			members: both(verdict(t, "a"), verdict(t, "b", closed, needing("bpf_trace_printk")), verdict(t, "c", newcomer)),
			want: chain.Rejection{Member: "b", Limit: chain.LimitLicense,
				Reason: `its licence "Proprietary" is not GPL compatible, and it calls bpf_trace_printk, which the kernel gives only to such programs`,
				Fix:    "declare a GPL compatible licence in the object, or do without the call"},
		},
		"a new closed program beside one that needs the GPL": {
			members: both(verdict(t, "a", closed, newcomer), verdict(t, "b", needing("bpf_trace_printk", "bpf_ktime_get_ns"))),
			want: chain.Rejection{Member: "a", Limit: chain.LimitLicense,
				Reason: `its licence "Proprietary" is not GPL compatible, and "b" of the same chain calls bpf_trace_printk, bpf_ktime_get_ns, ` +
					`which needs every member to be`,
				Fix: "declare a GPL compatible licence in the object, or attach to another interface"},
		},
		"a new program that needs the GPL beside a closed one": {
			members: both(verdict(t, "a", needing("bpf_trace_printk"), newcomer), verdict(t, "b", closed)),
			want: chain.Rejection{Member: "a", Limit: chain.LimitLicense,
				Reason: `it calls bpf_trace_printk, which needs every member of the chain to be GPL compatible, and "b" has licence "Proprietary"`,
				Fix:    "do without the call, or attach to another interface"},
		},
		"tail calls of a frags-aware program beside an unaware one": {
			members: both([]chain.Member{member(t, "a", "xdp_tailcall", inFrags)}, verdict(t, "b", newcomer)),
			want: chain.Rejection{Member: "b", Limit: chain.LimitFrags,
				Reason: `"a" takes packets of several buffers and makes tail calls, so all members must take such packets, and "b" does not`,
				Fix:    `put all programs into section "xdp.frags", or none`},
		},
	} {
		t.Run(name, tc.check)
	}
}

func TestLinkRefusesWhatPassesALimit(t *testing.T) {
	for name, tc := range map[string]refused{
		"the thirteenth program of five maps": {
			members: several(t, 13, "xdp_maps"),
			want: chain.Rejection{Member: "default/app-12 xdp_maps", Limit: chain.LimitMaps,
				Reason: "with it the chain has 66 maps, data sections and the chain's counters included, and the kernel takes 64",
				Fix:    "use fewer maps or data sections, or attach to another interface"},
		},
		"the new one of thirteen, wherever it stands": {
			members: both(verdict(t, "new", newcomer), several(t, 13, "xdp_maps")),
			want: chain.Rejection{Member: "new", Limit: chain.LimitMaps,
				Reason: "with it the chain has 68 maps, data sections and the chain's counters included, and the kernel takes 64",
				Fix:    "use fewer maps or data sections, or attach to another interface"},
		},
		"the sixteenth program of sixteen functions": {
			members: several(t, 16, "functions"),
			want: chain.Rejection{Member: "default/app-15 functions", Limit: chain.LimitSubprograms,
				Reason: "with it the chain has 257 functions, the dispatcher included, and the kernel takes 256",
				Fix:    "let the compiler inline functions (static __always_inline), or attach to another interface"},
		},
		"a program whose calls nest eight deep, not the new one": {
			members: both([]chain.Member{member(t, "a", "deep")}, verdict(t, "b", newcomer)),
			want: chain.Rejection{Member: "a", Limit: chain.LimitFrames,
				Reason: "with the dispatcher its calls nest 9 deep, and the kernel takes 8",
				Fix:    "let the compiler inline functions (static __always_inline)"},
		},
		"a million instructions": {
			members: both(verdict(t, "a"), verdict(t, "b")),
			edit:    long(1_000_000),
			want: chain.Rejection{Member: "b", Limit: chain.LimitInstructions,
				Reason: "with it the chain has 1000071 instructions, and the kernel takes 1000000",
				Fix:    "make the program shorter, or attach to another interface"},
		},
	} {
		t.Run(name, tc.check)
	}
}

// long puts so many instructions in front of the member's program.
func long(n int) edit {
	return func(_ testing.TB, m *chain.Member) {
		spec := m.Object.Programs[m.Program]
		insns := slices.Repeat(asm.Instructions{asm.Mov.Imm(asm.R0, 0)}, n)
		first := spec.Instructions[0]
		insns[0] = btf.WithFuncMetadata(insns[0], btf.FuncMetadata(&first)).WithSymbol(first.Symbol()).WithSource(first.Source())
		spec.Instructions[0] = btf.WithFuncMetadata(first, nil).WithSymbol("")
		spec.Instructions = append(insns, spec.Instructions...)
	}
}

// dividing has the member divide by a register so many times.
func dividing(n int) edit {
	return func(_ testing.TB, m *chain.Member) {
		p := m.Object.Programs[m.Program]
		rest := make(asm.Instructions, 0, n+2)
		rest = append(rest, asm.Mov.Imm(asm.R0, 2))
		for range n {
			rest = append(rest, asm.Mod.Reg(asm.R0, asm.R0))
		}
		rest[0] = p.Instructions[0].WithMetadata(p.Instructions[0].Metadata)
		rest[0].OpCode, rest[0].Dst, rest[0].Constant = asm.Mov.Op(asm.ImmSource), asm.R0, 2
		rest = append(rest, asm.Return())
		p.Instructions = rest
	}
}

// TestAChainThatIsLongToLoadTakesNoFurtherNamespace: one member alone is within its bound, and the work of
// several multiplies. Members that run stay, and the cluster's are not bounded.
func TestAChainThatIsLongToLoadTakesNoFurtherNamespace(t *testing.T) {
	newcomer := func(tenant string) edit {
		return func(_ testing.TB, m *chain.Member) { m.Tenant, m.New, m.Joins = tenant, true, true }
	}
	joins := func(_ testing.TB, m *chain.Member) { m.Tenant, m.Joins = "team", true }
	runs := func(_ testing.TB, m *chain.Member) { m.Tenant = "team" }
	for sentence, c := range map[string]struct {
		members  []chain.Member
		rejected string
	}{
		"one of many divisions":       {verdict(t, "a", dividing(2000), newcomer("team")), ""},
		"a second one":                {both(verdict(t, "a", dividing(2000), runs), verdict(t, "b", dividing(2000), newcomer("team"))), "b"},
		"a second one that runs":      {both(verdict(t, "a", dividing(2000), runs), verdict(t, "b", dividing(2000), runs)), ""},
		"a second one of the cluster": {both(verdict(t, "a", dividing(2000), runs), verdict(t, "b", dividing(2000), newcomer(""))), ""},
		"two before one of the cluster, where the last is blamed": {slices.Concat(both(verdict(t, "a", dividing(2000), joins),
			verdict(t, "b", dividing(2000), joins)), verdict(t, "c", newcomer(""))), "c"},
		"one before one of the cluster": {both(verdict(t, "a", dividing(2000), joins), verdict(t, "c", dividing(2000), newcomer(""))), ""},
		"a small one behind what runs and is long to load": {slices.Concat(both(verdict(t, "a", dividing(2000), runs),
			verdict(t, "b", dividing(2000), runs)), verdict(t, "c", newcomer("other"))), ""},
	} {
		_, err := chain.Link(c.members, chain.Options{})
		var refusal *chain.Rejection
		isRejected := errors.As(err, &refusal)
		if isRejected != (c.rejected != "") || isRejected && (refusal.Member != c.rejected || refusal.Limit != chain.LimitLoad) {
			t.Errorf("%s: %v, want %q rejected", sentence, err, c.rejected)
		}
	}
}

func TestLinkReportsMistakesOfItsCaller(t *testing.T) {
	for name, tc := range map[string]struct {
		members []chain.Member
		want    string
	}{
		"no members":            {nil, "it has no members"},
		"an empty key":          {[]chain.Member{member(t, "", "xdp_pass")}, `member ""`},
		"one key twice":         {[]chain.Member{member(t, "a", "xdp_pass"), member(t, "a", "xdp_void")}, `member "a" stands twice`},
		"a program that is not": {[]chain.Member{member(t, "a", "xdp_pass", func(_ testing.TB, m *chain.Member) { m.Program = "other" })}, `no program "other"`},
		"no object":             {[]chain.Member{{Key: "a", Program: "other"}}, `no program "other"`},
		"two objects of one app": {
			[]chain.Member{member(t, "a", "xdp_pass", of("app")), member(t, "b", "xdp_void", of("app"))}, `application "app" comes with two objects`,
		},
		"facts of another object": {[]chain.Member{member(t, "a", "xdp_pass", func(_ testing.TB, m *chain.Member) { m.Facts.License = "MIT" })},
			`its facts name licence "MIT"`},
		"no instructions": {[]chain.Member{member(t, "a", "xdp_pass", func(_ testing.TB, m *chain.Member) { m.Object.Programs["xdp_pass"].Instructions = nil })},
			`program "xdp_pass" has no instructions`},
		"a map that is not": {[]chain.Member{member(t, "a", "xdp_verdict", func(_ testing.TB, m *chain.Member) { delete(m.Object.Maps, "counts") })},
			`refers to map "counts", which its object does not define`},
		"a call to nowhere": {[]chain.Member{member(t, "a", "xdp_subprog", cutFunctions)}, "which its object does not define"},
		"one symbol twice":  {[]chain.Member{member(t, "a", "xdp_subprog", doubleFunctions)}, "duplicate symbol"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := chain.Link(tc.members, chain.Options{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want one with %q", err, tc.want)
			}
			var refusal *chain.Rejection
			if errors.As(err, &refusal) {
				t.Errorf("got refusal %v; a mistake of the caller is nobody's fault in the chain", refusal)
			}
		})
	}
}

// cutFunctions takes away every function but the member's own.
func cutFunctions(_ testing.TB, m *chain.Member) {
	spec := m.Object.Programs[m.Program]
	for i, ins := range spec.Instructions {
		if i > 0 && ins.Symbol() != "" {
			spec.Instructions = spec.Instructions[:i]
			return
		}
	}
}

func doubleFunctions(_ testing.TB, m *chain.Member) {
	spec := m.Object.Programs[m.Program]
	spec.Instructions = append(spec.Instructions, spec.Instructions...)
}

func TestLinkLeavesItsMembersAlone(t *testing.T) {
	m := member(t, "a", "xdp_subprog")
	before := fmt.Sprint(m.Object.Programs["xdp_subprog"].Instructions)
	for range 2 {
		if _, err := chain.Link([]chain.Member{m}, chain.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(before, fmt.Sprint(m.Object.Programs["xdp_subprog"].Instructions)); diff != "" {
		t.Errorf("the object changed (-before +after):\n%s", diff)
	}
}

func TestLinkIsDeterministic(t *testing.T) {
	members := []chain.Member{member(t, "a", "xdp_variables"), member(t, "b", "xdp_callback"), member(t, "c", "xdp_maps")}
	var first string
	for range 10 {
		linked, err := chain.Link(members, chain.Options{Counts: map[string]chain.Counts{"a": {1, 2, 3}}})
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("%v %v %v %v", linked.Program.Instructions, linked.Maps, linked.Counters, linked.Usage)
		if first == "" {
			first = got
		}
		if got != first {
			t.Fatalf("two links of the same members differ:\n%s\n%s", first, got)
		}
	}
}

func TestLinkShares(t *testing.T) {
	shared := object(t, "shared")
	in := func(program string) edit {
		return func(_ testing.TB, m *chain.Member) { m.Object, m.Program, m.Application = shared, program, "app" }
	}
	members := []chain.Member{
		member(t, "one", "xdp_pass", in("one")),
		member(t, "two", "xdp_pass", in("two")),
		member(t, "one again", "xdp_pass", in("one")),
		member(t, "other", "xdp_verdict"),
	}
	linked, err := chain.Link(members, chain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// Two entries with a copy of the function each, the other application's
	// program, the dispatcher.
	want := chain.Usage{Members: 4, Maps: 5, Subprograms: 6, Frames: 3, Instructions: linked.Usage.Instructions}
	if diff := cmp.Diff(want, linked.Usage); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	maps := []chain.MapRef{
		{Symbol: "app/.bss", Application: "app", Name: ".bss"},
		{Symbol: "app/total", Application: "app", Name: "total"},
		{Symbol: "other/.rodata", Application: "other", Name: ".rodata"},
		{Symbol: "other/counts", Application: "other", Name: "counts"},
	}
	byName := func(a, b chain.MapRef) int { return strings.Compare(a.Symbol, b.Symbol) }
	if diff := cmp.Diff(maps, slices.SortedFunc(slices.Values(linked.Maps), byName)); diff != "" {
		t.Errorf("maps (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"one", "two", "one again", "other"}, linked.Members); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
}

func TestLicenceOfAChain(t *testing.T) {
	for name, tc := range map[string]struct {
		members []chain.Member
		want    string
	}{
		"all compatible":                        {[]chain.Member{member(t, "a", "xdp_gpl", needing("bpf_trace_printk")), member(t, "b", "xdp_pass")}, "GPL"},
		"one closed where nobody needs the GPL": {[]chain.Member{member(t, "a", "xdp_proprietary", closed), member(t, "b", "xdp_pass")}, "Proprietary"},
	} {
		t.Run(name, func(t *testing.T) {
			linked, err := chain.Link(tc.members, chain.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if linked.Program.License != tc.want {
				t.Errorf("licence is %q, want %q", linked.Program.License, tc.want)
			}
		})
	}
}

func TestFragsAwareOnlyIfAllMembersAre(t *testing.T) {
	for name, tc := range map[string]struct {
		members []chain.Member
		want    uint32
	}{
		"all aware":          {[]chain.Member{member(t, "a", "xdp_frags"), member(t, "b", "xdp_pass", inFrags)}, fragsFlag},
		"one unaware":        {[]chain.Member{member(t, "a", "xdp_frags"), member(t, "b", "xdp_pass")}, 0},
		"aware tail callers": {[]chain.Member{member(t, "a", "xdp_frags"), member(t, "b", "xdp_tailcall", inFrags)}, fragsFlag},
	} {
		t.Run(name, func(t *testing.T) {
			linked, err := chain.Link(tc.members, chain.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if linked.Program.Flags != tc.want {
				t.Errorf("flags are %#x, want %#x", linked.Program.Flags, tc.want)
			}
		})
	}
}

func TestProceedOn(t *testing.T) {
	for name, tc := range map[string]struct {
		names []string
		mask  uint32
		err   string
	}{
		"nothing means Pass": {nil, 1 << pass, ""},
		"all five":           {[]string{"Redirect", "Tx", "Pass", "Drop", "Aborted"}, 0b11111, ""},
		"one twice":          {[]string{"Drop", "Drop"}, 1 << drop, ""},
		"a name in capitals": {[]string{"PASS"}, 0, `"PASS" is no XDP verdict; write one of Aborted, Drop, Pass, Tx, Redirect`},
	} {
		t.Run(name, func(t *testing.T) {
			mask, err := chain.ProceedOn(tc.names)
			if got := fmt.Sprint(err); tc.err != "" && !strings.Contains(got, tc.err) {
				t.Errorf("got error %v, want %q", err, tc.err)
			}
			if mask != tc.mask {
				t.Errorf("mask is %#b, want %#b", mask, tc.mask)
			}
		})
	}
	if diff := cmp.Diff([]string{"Aborted", "Redirect"}, chain.Verdicts(1<<aborted|1<<redirect|1<<9)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestRoomLeft(t *testing.T) {
	linked, err := chain.Link(several(t, 12, "xdp_maps"), chain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	left := linked.Usage.Left()
	if left.Maps != 3 || left.Subprograms != 243 || left.Members != 243 {
		t.Errorf("room is %+v, want 3 maps, 243 subprograms and members", left)
	}
	if left.Verified != chain.MaxInstructions-linked.Usage.Instructions {
		t.Errorf("room for %d instructions before loading, want what the length leaves", left.Verified)
	}
}
