package chain_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/test/harness/hardened"
	"github.com/skep-dev/skep/test/harness/need"
)

// live is a chain in the kernel and the maps of its applications.
type live struct {
	*chain.Loaded
	linked *chain.Linked
	apps   map[string]*ebpf.Collection
}

// load creates the maps of every application the way the agent does, by loading
// it alone, and then links and loads the chain over them.
func load(tb testing.TB, members ...chain.Member) live {
	tb.Helper()
	l, err := tryLoad(tb, members...)
	if err != nil {
		tb.Fatalf("%+v", err)
	}
	return l
}

func tryLoad(tb testing.TB, members ...chain.Member) (live, error) {
	tb.Helper()
	need.Kernel(tb)
	l := live{apps: map[string]*ebpf.Collection{}}
	for _, m := range members {
		if l.apps[m.Application] != nil {
			continue
		}
		coll, err := ebpf.NewCollection(m.Object.Copy())
		if err != nil && older(tb, since(m.Program)) {
			tb.Skipf("SKIPPED: %s: %v", m.Program, err)
		}
		if err != nil {
			tb.Fatalf("load %s alone: %+v", m.Key, err)
		}
		tb.Cleanup(coll.Close)
		l.apps[m.Application] = coll
	}
	linked, err := chain.Link(members, chain.Options{})
	if err != nil {
		return l, err
	}
	l.linked = linked
	l.Loaded, err = chain.Load(linked, l.open, ebpf.ProgramOptions{})
	if err != nil {
		return l, err
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Errorf("close chain: %v", err)
		}
	})
	return l, nil
}

// since is the kernel a test program needs where Skep's lowest does not do.
func since(program string) [2]uint32 {
	switch program {
	case "xdp_kfunc":
		return [2]uint32{6, 4} // bpf_dynptr_from_xdp
	case "tail_deep":
		return [2]uint32{6, 12} // stack in steps of 16 bytes, not 32
	}
	return [2]uint32{}
}

// older reports whether this kernel comes before a version.
func older(tb testing.TB, version [2]uint32) bool {
	tb.Helper()
	code, err := features.LinuxVersionCode()
	if err != nil {
		tb.Fatal(err)
	}
	return code < version[0]<<16|version[1]<<8
}

// open is the agent's part: it finds the map that is already there.
func (l live) open(ref chain.MapRef) (*ebpf.Map, error) {
	if m := l.apps[ref.Application].Maps[ref.Name]; m != nil {
		return m, nil
	}
	return nil, errors.New("no such map")
}

// run sends packets of 64 bytes through the chain and returns the last verdict.
// One by one: the kernel lets signals interrupt a longer run, which then starts
// anew and counts more.
func (l live) run(tb testing.TB, packets int) uint32 {
	tb.Helper()
	var verdict uint32
	for range packets {
		ret, err := l.Program.Run(&ebpf.RunOptions{Data: make([]byte, 64), DataOut: make([]byte, 256)})
		if err != nil {
			tb.Fatalf("run chain: %v", err)
		}
		verdict = ret
	}
	return verdict
}

// runs reads the chain's counters.
func (l live) runs(tb testing.TB) []uint64 {
	tb.Helper()
	var runs []uint64
	for _, counts := range l.counts(tb) {
		runs = append(runs, counts.Runs())
	}
	return runs
}

// counts reads the chain's counters.
func (l live) counts(tb testing.TB) []chain.Counts {
	tb.Helper()
	counts, err := chain.ReadCounts(l.Counters, len(l.linked.Members))
	if err != nil {
		tb.Fatal(err)
	}
	return counts
}

// counted reads an application's own counter, in its map counts.
func (l live) counted(tb testing.TB, application string) uint64 {
	tb.Helper()
	var perCPU []uint64
	if err := l.apps[application].Maps["counts"].Lookup(uint32(0), &perCPU); err != nil {
		tb.Fatalf("read counts of %s: %v", application, err)
	}
	var total uint64
	for _, n := range perCPU {
		total += n
	}
	return total
}

func TestEveryTestProgramRunsBetweenTwoOthers(t *testing.T) {
	for _, name := range []string{
		"xdp_pass", "xdp_void", "xdp_nobtf", "xdp_callback", "xdp_core", "xdp_frags", "xdp_gpl", "xdp_kfunc",
		"xdp_lock", "xdp_maps", "xdp_stack", "xdp_subprog", "xdp_tailcall", "xdp_timer", "xdp_variables", "xdp_adjust",
		"kconfig_version", "kconfig_wrapper", "ksym", "functions_nobtf",
	} {
		t.Run(name, func(t *testing.T) {
			l := load(t, member(t, "first", "xdp_verdict"), member(t, "middle", name), member(t, "last", "xdp_verdict", returning(tx)))
			if got := l.run(t, 5); got != tx {
				t.Errorf("verdict is %d, want the last member's, %d", got, tx)
			}
			if diff := cmp.Diff([]uint64{5, 5, 5}, l.runs(t)); diff != "" {
				t.Errorf("runs (-want +got):\n%s", diff)
			}
			if got := l.counted(t, "last"); got != 5 {
				t.Errorf("the last member counted %d packets, want 5", got)
			}
		})
	}
}

// TestExternVariablesAreNotGuessed where the kernel blinds constants, and so does not tell where they are.
func TestExternVariablesAreNotGuessed(t *testing.T) {
	need.Kernel(t)
	hardened.JIT(t, true, func() {
		_, err := tryLoad(t, member(t, "first", "kconfig_version"), member(t, "second", "kconfig_wrapper"))
		if err == nil || !strings.Contains(err.Error(), "where net.core.bpf_jit_harden is 2 the kernel does not tell constants") {
			t.Errorf("it is loaded: %v", err)
		}
	})
}

func TestExternVariablesOfSeveralApplicationsResolve(t *testing.T) {
	need.Kernel(t)
	hardened.JIT(t, false, func() { externVariablesResolve(t) })
}

func externVariablesResolve(t *testing.T) {
	t.Helper()
	l := load(t,
		member(t, "first", "kconfig_version"),
		member(t, "second", "kconfig_wrapper"),
		member(t, "third", "kconfig_version"),
	)
	if got := l.run(t, 1); got != pass {
		t.Errorf("verdict is %d, want %d", got, pass)
	}
	if diff := cmp.Diff([]uint64{1, 1, 1}, l.runs(t)); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
	if got := l.linked.Usage.Maps; got != 4 {
		t.Errorf("the chain counts %d maps, want 4: the counters and a section each", got)
	}
}

// unknown is a verdict that enum xdp_action does not have.
const unknown uint32 = 7

func TestNextMemberRunsOnlyAfterAVerdictToProceedOn(t *testing.T) {
	verdicts := []uint32{aborted, drop, pass, tx, redirect, unknown, ^uint32(0)}
	for _, mask := range []uint32{0, 1 << aborted, 1 << drop, 1 << pass, 1 << tx, 1 << redirect, 1<<pass | 1<<drop, 0b11111} {
		for _, verdict := range verdicts {
			t.Run(fmt.Sprintf("verdict %d, proceeding on %v", verdict, chain.Verdicts(mask)), func(t *testing.T) {
				l := load(t,
					member(t, "first", "xdp_verdict", returning(verdict), proceedingOn(mask)),
					member(t, "second", "xdp_verdict", returning(tx)))
				want, runs := verdict, []uint64{3, 0}
				if verdict < 32 && mask&(1<<verdict) != 0 {
					want, runs = tx, []uint64{3, 3}
				}
				if got := l.run(t, 3); got != want {
					t.Errorf("verdict is %d, want %d", got, want)
				}
				if diff := cmp.Diff(runs, l.runs(t)); diff != "" {
					t.Errorf("runs (-want +got):\n%s", diff)
				}
				name := "Other"
				if verdict <= redirect {
					name = chain.Verdicts(1 << verdict)[0]
				}
				if diff := cmp.Diff(map[string]uint64{name: 3}, l.counts(t)[0].Verdicts()); diff != "" {
					t.Errorf("verdicts of the first member (-want +got):\n%s", diff)
				}
				if got := l.counted(t, "second"); got != runs[1] {
					t.Errorf("the second member counted %d packets, want %d", got, runs[1])
				}
			})
		}
	}
}

// TestATenantHidesNoPacketThatItLetsThrough has a tenant return any verdict before a member that is to see what it lets through, with
// one of another tenant between them.
func TestATenantHidesNoPacketThatItLetsThrough(t *testing.T) {
	of := func(tenant string) edit { return func(_ testing.TB, m *chain.Member) { m.Tenant = tenant } }
	final := func(_ testing.TB, m *chain.Member) { m.Final = true }
	for _, mask := range []uint32{0, 1 << pass, 1 << tx} {
		for _, verdict := range []uint32{aborted, drop, pass, tx, redirect, unknown, ^uint32(0)} {
			t.Run(fmt.Sprintf("verdict %d, proceeding on %v", verdict, chain.Verdicts(mask)), func(t *testing.T) {
				l := load(t,
					member(t, "admin", "xdp_verdict", returning(pass)),
					member(t, "first", "xdp_verdict", returning(verdict), proceedingOn(mask), of("a")),
					member(t, "second", "xdp_verdict", returning(pass), proceedingOn(0), of("b")),
					member(t, "last", "xdp_verdict", returning(redirect), final))
				goesOn := verdict < 32 && mask&(1<<verdict) != 0
				want, runs := drop, []uint64{3, 3, 0, 0}
				switch {
				case goesOn:
					want, runs = redirect, []uint64{3, 3, 3, 3}
				case verdict == pass:
					want, runs = redirect, []uint64{3, 3, 0, 3}
				case verdict == aborted:
					want = aborted
				}
				if got := l.run(t, 3); got != want {
					t.Errorf("verdict is %d, want %d", got, want)
				}
				if diff := cmp.Diff(runs, l.runs(t)); diff != "" {
					t.Errorf("runs (-want +got):\n%s", diff)
				}
			})
		}
	}
	// The cluster's own members hide from one another what they want.
	l := load(t, member(t, "admin", "xdp_verdict", returning(tx)), member(t, "last", "xdp_verdict", returning(drop), final))
	if got := l.run(t, 1); got != tx {
		t.Errorf("the verdict of the cluster's is %d, want %d", got, tx)
	}
}

// TestAChainWithMembersOffIsAChainWithoutThem tries each choice of members that are off.
func TestAChainWithMembersOffIsAChainWithoutThem(t *testing.T) {
	const packets, mask = 2, 1<<pass | 1<<tx
	for _, verdicts := range [][]uint32{{pass, drop, tx}, {drop, pass, redirect}, {tx, tx, drop}, {unknown, pass, aborted}} {
		members := make([]chain.Member, len(verdicts))
		for i, verdict := range verdicts {
			members[i] = member(t, fmt.Sprint("m", i), "xdp_verdict", returning(verdict), proceedingOn(mask))
		}
		l := load(t, members...)
		for off := range 1 << len(members) {
			is := make([]bool, len(members))
			for i := range is {
				is[i] = off&(1<<i) != 0
			}
			if err := chain.Switch(l.Counters, is); err != nil {
				t.Fatal(err)
			}
			if got, err := chain.ReadSwitches(l.Counters, len(members)); err != nil || !slices.Equal(got, is) {
				t.Fatalf("off are %v, %v, want %v", got, err, is)
			}
			// Without any member, there is no program.
			want, runs := pass, l.runs(t)
			for i, verdict := range verdicts {
				if is[i] {
					continue
				}
				want, runs[i] = verdict, runs[i]+packets
				if mask&(1<<verdict) == 0 {
					break
				}
			}
			if got := l.run(t, packets); got != want {
				t.Errorf("verdicts %v, off %03b: the chain says %d, want %d", verdicts, off, got, want)
			}
			if diff := cmp.Diff(runs, l.runs(t)); diff != "" {
				t.Errorf("verdicts %v, off %03b: runs (-want +got):\n%s", verdicts, off, diff)
			}
		}
	}
}

// TestAMapOfBeforeHasNoSwitch tries those that earlier versions of Skep made.
func TestAMapOfBeforeHasNoSwitch(t *testing.T) {
	need.Kernel(t)
	for _, words := range []uint32{1, 7} {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 2 * words * 8, MaxEntries: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		if off, err := chain.ReadSwitches(m, 2); err != nil || slices.Contains(off, true) {
			t.Errorf("%d words: off are %v, %v", words, off, err)
		}
		if err := chain.Switch(m, []bool{true, true}); !errors.Is(err, chain.ErrNoSwitch) {
			t.Errorf("%d words: %v", words, err)
		}
	}
}

func TestChainsOfOneToThirtyTwoMembers(t *testing.T) {
	for n := 1; n <= 32; n++ {
		l := load(t, several(t, n, "xdp_pass")...)
		if got := l.run(t, 2); got != pass {
			t.Errorf("%d members: verdict is %d, want %d", n, got, pass)
		}
		if diff := cmp.Diff(slices.Repeat([]uint64{2}, n), l.runs(t)); diff != "" {
			t.Errorf("%d members: runs (-want +got):\n%s", n, diff)
		}
	}
}

func TestProgramsOfOneApplicationShareMapsInOrder(t *testing.T) {
	app := object(t, "shared")
	in := func(program string) edit {
		return func(_ testing.TB, m *chain.Member) { m.Object, m.Program, m.Application = app, program, "app" }
	}
	l := load(t,
		member(t, "one", "xdp_pass", in("one")),
		member(t, "two", "xdp_pass", in("two")),
		member(t, "stranger", "shared", func(_ testing.TB, m *chain.Member) { m.Program = "two" }),
		member(t, "one again", "xdp_pass", in("one")))
	l.run(t, 1)
	order, total := l.apps["app"].Maps[".bss"], l.apps["app"].Maps["total"]
	var digits, sum uint64
	if err := errors.Join(order.Lookup(uint32(0), &digits), total.Lookup(uint32(0), &sum)); err != nil {
		t.Fatal(err)
	}
	if digits != 121 || sum != 4 {
		t.Errorf("the application's programs ran in order %d and added up to %d, want 121 and 4", digits, sum)
	}
	var others uint64
	if err := l.apps["stranger"].Maps[".bss"].Lookup(uint32(0), &others); err != nil {
		t.Fatal(err)
	}
	if others != 2 {
		t.Errorf("the other application saw %d, want its own 2 only", others)
	}
	if diff := cmp.Diff([]uint64{1, 1, 1, 1}, l.runs(t)); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

func TestNextMemberSeesWhatTheOneBeforeDidToThePacket(t *testing.T) {
	l := load(t, member(t, "cut", "xdp_adjust"), member(t, "cut again", "xdp_adjust"), member(t, "last", "xdp_pass"))
	_, out, err := l.Program.Test(make([]byte, 64))
	if err != nil {
		t.Fatal(err)
	}
	if len(out) != 56 {
		t.Errorf("the packet is %d bytes after two members took 4 of 64 each, want 56", len(out))
	}
}

func TestCountersGoOnAcrossLinks(t *testing.T) {
	first, second := member(t, "a", "xdp_pass"), member(t, "b", "xdp_pass")
	l := load(t, first, second)
	l.run(t, 4)
	counts := map[string]chain.Counts{}
	for i, c := range l.counts(t) {
		counts[l.linked.Members[i]] = c
	}
	linked, err := chain.Link([]chain.Member{member(t, "new", "xdp_pass"), second, first}, chain.Options{Counts: counts})
	if err != nil {
		t.Fatal(err)
	}
	again, err := chain.Load(linked, l.open, ebpf.ProgramOptions{})
	if err != nil {
		t.Fatal(err)
	}
	next := live{Loaded: again, linked: linked}
	t.Cleanup(func() { next.Close() })
	next.run(t, 1)
	if diff := cmp.Diff([]uint64{1, 5, 5}, next.runs(t)); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]uint64{"Pass": 5}, next.counts(t)[1].Verdicts()); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

// TestCountsOfBeforeAreRuns reads the map of a version of Skep that counted runs alone.
func TestCountsOfBeforeAreRuns(t *testing.T) {
	need.Kernel(t)
	for size, want := range map[uint32][]uint64{16: {3, 4}, 24: nil} {
		value := []uint64{3, 4, 0}[:size/8]
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: size, MaxEntries: 1,
			Contents: []ebpf.MapKV{{Key: uint32(0), Value: [][]uint64{value}}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		counts, err := chain.ReadCounts(m, 2)
		var got []uint64
		for _, c := range counts {
			got = append(got, c.Runs())
			if len(c.Verdicts()) > 0 {
				t.Errorf("verdicts %v", c.Verdicts())
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (want != nil) {
			t.Errorf("%d bytes: %v, runs (-want +got):\n%s", size, err, diff)
		}
	}
}

func TestKernelSeesOneLicenceForAllMembers(t *testing.T) {
	// The reason for checking licences from facts: this member is rejected alone
	// and would load in a chain that says GPL.
	need.Kernel(t)
	hidden := member(t, "hidden", "xdp_proprietary_gpl")
	if coll, err := ebpf.NewCollection(hidden.Object.Copy()); err == nil {
		coll.Close()
		t.Fatal("the kernel loads a proprietary program with a GPL-only helper alone")
	}
	linked, err := chain.Link([]chain.Member{hidden, member(t, "gpl", "xdp_gpl")}, chain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	maps := live{apps: map[string]*ebpf.Collection{}}
	for _, m := range []chain.Member{hidden, member(t, "gpl", "xdp_gpl")} {
		delete(m.Object.Programs, "xdp_proprietary_gpl")
		coll, err := ebpf.NewCollection(m.Object)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(coll.Close)
		maps.apps[m.Application] = coll
	}
	l, err := chain.Load(linked, maps.open, ebpf.ProgramOptions{})
	if err != nil {
		t.Fatalf("the kernel sees through the chain, so the check from facts is not needed: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestVerifierBlamesTheNewcomer(t *testing.T) {
	for name, tc := range map[string]struct {
		members []chain.Member
		member  string
		limit   chain.Limit
		reason  string
	}{
		"a stack too deep with the dispatcher": {
			members: []chain.Member{member(t, "old", "xdp_stack"), member(t, "new", "stack_full", newcomer), member(t, "older", "xdp_pass")},
			member:  "new", limit: chain.LimitStack,
			reason: "with the dispatcher its deepest path of calls takes more than 512 bytes of stack",
		},
		"a tail call from too deep a stack": {
			members: []chain.Member{member(t, "old", "xdp_pass"), member(t, "new", "tail_deep", newcomer), member(t, "older", "xdp_pass")},
			member:  "new", limit: chain.LimitStack,
			reason: "it makes tail calls from a path of calls that takes 256 bytes of stack or more",
		},
		"too much for the verifier to walk": {
			members: several(t, 4, "branches"),
			member:  "default/app-3 branches", limit: chain.LimitInstructions,
			reason: "with it the verifier walks more than 1000000 instructions, which all members share",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tryLoad(t, tc.members...)
			refusal := asRefusal(t, err)
			if refusal.Member != tc.member || refusal.Limit != tc.limit || refusal.Reason != tc.reason {
				t.Errorf("got %q, limit %q: %s\nwant %q, limit %q: %s", refusal.Member, refusal.Limit, refusal.Reason, tc.member, tc.limit, tc.reason)
			}
			var verifier *ebpf.VerifierError
			if !errors.As(err, &verifier) || len(verifier.Log) == 0 {
				t.Errorf("error %v keeps no verifier log", err)
			}
		})
	}
}

func TestOpenErrorNamesTheMap(t *testing.T) {
	need.Kernel(t)
	linked, err := chain.Link([]chain.Member{member(t, "app", "xdp_count", func(_ testing.TB, m *chain.Member) { m.Program = "count_packets" })}, chain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gone := errors.New("gone")
	_, err = chain.Load(linked, func(chain.MapRef) (*ebpf.Map, error) { return nil, gone }, ebpf.ProgramOptions{})
	if !errors.Is(err, gone) || !strings.Contains(err.Error(), `of application "app"`) {
		t.Errorf("got error %v, want one that wraps %q and names the application", err, gone)
	}
}

func TestMembersShareWhatTheVerifierMayWalk(t *testing.T) {
	walked := func(members int) chain.Usage {
		l := load(t, several(t, members, "branches")...)
		info, err := l.Program.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, _ := info.VerifiedInstructions()
		u := l.linked.Usage
		u.Verified = int(n)
		return u
	}
	one, two := walked(1), walked(2)
	if one.Verified < 100_000 || two.Verified < one.Verified*3/2 {
		t.Errorf("one member takes %d verified instructions and two take %d; want many, and near twice as many", one.Verified, two.Verified)
	}
	if left := two.Left(); left.Verified != chain.MaxInstructions-two.Verified {
		t.Errorf("room is %+v for %d walked instructions", left, two.Verified)
	}
}
