package chain_test

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/chain"
)

// needKernel skips a test that cannot load programs here.
func needKernel(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("SKIPPED: loading XDP programs needs root")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		tb.Fatalf("remove memlock limit: %v", err)
	}
}

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
	needKernel(tb)
	l := live{apps: map[string]*ebpf.Collection{}}
	for _, m := range members {
		if l.apps[m.Application] != nil {
			continue
		}
		coll, err := ebpf.NewCollection(m.Object.Copy())
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

// open is the agent's part: it finds the map that is already there.
func (l live) open(ref chain.MapRef) (*ebpf.Map, error) {
	if m := l.apps[ref.Application].Maps[ref.Name]; m != nil {
		return m, nil
	}
	return nil, errors.New("no such map")
}

// run sends packets of 64 bytes through the chain and returns the last verdict.
func (l live) run(tb testing.TB, packets int) uint32 {
	tb.Helper()
	ret, err := l.Program.Run(&ebpf.RunOptions{Data: make([]byte, 64), DataOut: make([]byte, 256), Repeat: uint32(packets)})
	if err != nil {
		tb.Fatalf("run chain: %v", err)
	}
	return ret
}

// runs reads the chain's counters.
func (l live) runs(tb testing.TB) []uint64 {
	tb.Helper()
	runs, err := chain.ReadRuns(l.Counters)
	if err != nil {
		tb.Fatal(err)
	}
	return runs
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
		"kconfig_version", "kconfig_wrapper", "ksym",
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

func TestExternVariablesOfSeveralApplicationsResolve(t *testing.T) {
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
