package hooks_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// lookLater makes the agent look three times, a minute apart.
func lookLater(t *testing.T, a *agent.Agent, clock *world.Clock) {
	t.Helper()
	for range 3 {
		clock.Forward(time.Minute)
		a.Reconcile(t.Context())
	}
}

// TestAMemberThatNeverRanWhilePacketsCameIsAWarning: the member before it ends the chain.
func TestAMemberThatNeverRanWhilePacketsCameIsAWarning(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "nr0", "nr1")
	clock, o := world.NewClock(), w.Options()
	o.Clock = clock.Now
	a := w.Idle(o)
	first, second := world.XDP(w, "xdp_pass", "xdp_pass", "nr0"), world.XDP(w, "xdp_count", "count_packets", "nr0")
	first.Programs[0].Attach[0].ProceedOn, first.Programs[0].Attach[0].Priority = []string{"Drop"}, world.Ptr(int32(1))
	world.Hand(w, a, first, second)
	lookLater(t, a, clock)
	for _, name := range []string{first.Application.Name, second.Application.Name} {
		if notes := world.LinkOf(t, a, name).Notes(); len(notes) > 0 {
			t.Errorf("before any packet, %s has notes %v", name, notes)
		}
	}
	world.Send(t, "nr1", 5)
	lookLater(t, a, clock)
	const want = "has never run, while the interface received packets (5)"
	if notes := world.LinkOf(t, a, second.Application.Name).Notes(); !slices.Equal(notes, []string{want}) {
		t.Errorf("notes %v, want %q", notes, want)
	}
	if notes := world.LinkOf(t, a, first.Application.Name).Notes(); len(notes) > 0 {
		t.Errorf("what ran has notes %v", notes)
	}
	if got := conditionOf(a, second.Application.Name); got != "every program is attached; xdp on nr0: has never run, while the interface received packets" {
		t.Errorf("the condition says %q", got)
	}
	for _, m := range world.ChainsOf(t, a)[0].Members {
		if isLast := m.Application == second.Application.Name; slices.Equal(m.Notes, []string{want}) != isLast {
			t.Errorf("member %s has notes %v", m.Application, m.Notes)
		}
	}
}

// TestTheKernelsCountSaysWhatNeverRan where it is on, and nothing is said where it is off.
func TestTheKernelsCountSaysWhatNeverRan(t *testing.T) {
	need.Kernel(t)
	world.NeedLink(t, "tcx/ingress")
	const file = "/proc/sys/kernel/bpf_stats_enabled"
	was, err := os.ReadFile(file)
	world.Must(t, err)
	set := func(to string) { world.Must(t, os.WriteFile(file, []byte(to), 0)) }
	t.Cleanup(func() { set(string(was)) })
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "nk0", "nk1")
	clock, o := world.NewClock(), w.Options()
	o.Clock = clock.Now
	a := w.Idle(o)
	attachAnother(t, "ends_it", "nk0", ebpf.AttachTCXIngress, nil)
	world.Hand(w, a, counting(w, "in", "tcx/ingress", "nk0"), counting(w, "out", "tcx/egress", "nk0"))
	set("0")
	lookLater(t, a, clock)
	world.Send(t, "nk1", 5)
	lookLater(t, a, clock)
	if n := world.LinkOf(t, a, "in").NeverRan; n != 0 {
		t.Errorf("without counts it says that %d packets came", n)
	}
	set("1")
	lookLater(t, a, clock)
	world.Send(t, "nk1", 5)
	lookLater(t, a, clock)
	if in, out := world.LinkOf(t, a, "in"), world.LinkOf(t, a, "out"); in.NeverRan != 5 || out.NeverRan != 0 {
		t.Errorf("ingress says %d, egress %d; want 5 and 0", in.NeverRan, out.NeverRan)
	}
}
