package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestWhatIsToGoGoesWhereTheChainOfTheOthersCannotBeLoaded has the kernel reject every
// chain without the member that is to go, as for want of memory.
func TestWhatIsToGoGoesWhereTheChainOfTheOthersCannotBeLoaded(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		// fits is how many members a chain may have at most.
		fits int
		// unswitched: an earlier version of Skep loaded the chain, whose members have no switch.
		unswitched bool
		stays      string
	}{
		"it is switched off":                        {1, false, "oldest young older gone"},
		"it runs still, and a smaller chain can be": {2, true, "oldest older"},
		"it runs still, and no chain at all can be": {1, true, "oldest"},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "cn0", "cn1")
			var ahead atomic.Int64
			o := w.Options()
			o.Clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
			o.BackOff = agent.BackOff{First: 100 * time.Millisecond, Most: 200 * time.Millisecond}
			a := w.StartWith(o)
			if c.unswitched {
				a.LoadsUnswitched()
			}
			gone := world.Member(w, "gone", "xdp_count", "count_packets", 4)
			for i, p := range []intent.Payload{
				world.Member(w, "oldest", "xdp_pass", "xdp_pass", 1), world.Member(w, "older", "xdp_gpl", "xdp_gpl", 3), world.Member(w, "young", "xdp_count_v2",
					"count_packets", 2), gone,
			} {
				p.Created = int64(i + 1)
				if err := w.Accept(a, p); err != nil {
					t.Fatal(err)
				}
			}
			const all = "oldest young older gone"
			if got := world.MembersOf(t, a); got != all {
				t.Fatalf("the chain is %q", got)
			}
			var refused atomic.Int64
			a.RefuseChains(func(members []string) error {
				if len(members) > c.fits && !slices.Contains(members, "gone") {
					refused.Add(1)
					return fmt.Errorf("load chain: %w", unix.ENOMEM)
				}
				return nil
			})
			state := map[bool]string{false: "it is switched off, and is there still", true: "it runs there still"}[c.unswitched]
			if err := w.Accept(a, w.Tombstone(gone)); err == nil || !strings.Contains(err.Error(), state) {
				t.Errorf("Settled = %v", err)
			}
			if got := world.MembersOf(t, a); got != all {
				t.Errorf("the chain is %q, and what hinders it may pass", got)
			}
			passesTheOthers := func() {
				t.Helper()
				before := runsOf(t, a)
				world.Send(t, "cn1", 5)
				world.Until(t, "the packets to pass the others", time.Minute, func() bool { return runsOf(t, a)["young"] >= before["young"]+5 })
				if now := runsOf(t, a); now["gone"] != before["gone"] || now["older"] == before["older"] {
					t.Errorf("packets passed %v, and %v before", now, before)
				}
			}
			if !c.unswitched {
				passesTheOthers()
			}
			ahead.Store(int64(31 * time.Second))
			if c.unswitched {
				world.Until(t, "the tombstone to act", time.Minute, func() bool { return world.StatusOf(a, "gone") == nil })
				world.Until(t, "who was taken out to be told", time.Minute, func() bool {
					return strings.Contains(world.StatusOf(a, "young").Error,
						"cannot allocate memory")
				})
			} else {
				more := refused.Load() + 5
				world.Until(t, "more attempts", time.Minute, func() bool { return refused.Load() >= more })
				passesTheOthers()
				for _, name := range []string{"oldest", "young", "older"} {
					if s := world.StatusOf(a, name); s.Conditions[0].Status != "True" {
						t.Errorf("%s: %+v", name, s)
					}
				}
			}
			if got := world.MembersOf(t, a); got != c.stays {
				t.Errorf("the chain is %q, want %q", got, c.stays)
			}
			a.RefuseChains(func([]string) error { return nil })
			ahead.Store(int64(time.Hour))
			world.Until(t, "them to be back", time.Minute, func() bool { return world.MembersOf(t, a) == "oldest young older" })
		})
	}
}

// TestWhatIsSwitchedOffStaysSoWhereItsIntentIsLost restarts the agent while a chain has a revoked member that it cannot be loaded
// without, and the node has lost the tombstone: nothing that is not known is unloaded, and nothing of it runs again.
func TestWhatIsSwitchedOffStaysSoWhereItsIntentIsLost(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, stop := w.Start()
	gone := world.Member(w, "gone", "xdp_count", "count_packets", 4)
	world.Must(t, w.Accept(a, world.Member(w, "older", "xdp_pass", "xdp_pass", 1), world.Member(w, "young", "xdp_count_v2", "count_packets", 2), gone))
	a.RefuseChains(func([]string) error { return fmt.Errorf("load chain: %w", unix.ENOMEM) })
	if err := w.Accept(a, w.Tombstone(gone)); err == nil {
		t.Fatal("the chain was loaded without it")
	}
	before := runsOf(t, a)
	stop()
	forget(w, gone)
	a, _ = w.Start()
	world.Must(t, w.Accept(a))
	world.Send(t, "cn1", 5)
	world.Until(t, "the packets to pass the others", time.Minute, func() bool { return runsOf(t, a)["young"] >= before["young"]+5 })
	// The next chain does not take it along.
	if now := runsOf(t, a); now["gone"] != 0 && now["gone"] != before["gone"] {
		t.Errorf("packets passed %v, and %v before", now, before)
	}
}

// runsOf are how often each member ran of the chain that has a member gone, which is switched off alone.
func runsOf(t *testing.T, a *agent.Agent) map[string]uint64 {
	t.Helper()
	chains, err := a.Chains()
	if err != nil || len(chains) != 1 {
		t.Fatal(chains, err)
	}
	runs := map[string]uint64{}
	for _, m := range chains[0].Members {
		runs[m.Application] = *m.Runs
		if m.SwitchedOff != (m.Application == "gone") {
			t.Errorf("switched off is %v for %s", m.SwitchedOff, m.Application)
		}
	}
	return runs
}

// TestWhatIsToGoGoesWhereAnotherMemberCannotBeLinkedAgain has a chain whose members cannot be switched off.
func TestWhatIsToGoGoesWhereAnotherMemberCannotBeLinkedAgain(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	o := w.Options()
	o.BackOff = agent.BackOff{First: 100 * time.Millisecond, Most: 100 * time.Millisecond}
	a := w.StartWith(o)
	a.LoadsUnswitched()
	ca, cb, _ := world.Three(w, a)
	if err := w.Accept(a, world.Member(w, "cd", "xdp_count_v2", "count_packets", 4)); err != nil {
		t.Fatal(err)
	}
	restore := world.Lose(w, cb)
	err := w.Accept(a, w.Tombstone(ca))
	if got := world.MembersOf(t, a); got != "cc cd" {
		t.Fatalf("the chain is %q", got)
	}
	if err == nil || !strings.Contains(err.Error(), "cb: run in the chain of cn0: it is left out") || !strings.Contains(err.Error(), "fetch object of cb") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("Settled = %v", err)
	}
	if s := world.StatusOf(a, "ca"); s != nil {
		t.Errorf("what is gone is listed: %+v", s)
	}
	for _, pin := range world.Pins(w) {
		if strings.Contains(pin, "uid-ca") {
			t.Errorf("pin %s is left", pin)
		}
	}
	for name, want := range map[string]string{"cb": "False", "cc": "True", "cd": "True"} {
		if s := world.StatusOf(a, name); s == nil || string(s.Conditions[0].Status) != want {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if s := world.StatusOf(a, "cb"); len(s.Programs) != 1 || len(s.Programs[0].Links) != 1 || s.Programs[0].Links[0].State != agent.Failed {
		t.Errorf("cb: %+v", s)
	}
	restore()
	world.Until(t, "cb to be back", time.Minute, func() bool { return world.MembersOf(t, a) == "cb cc cd" && world.StatusOf(a, "cb").Error == "" })
}
