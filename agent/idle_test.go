package agent_test

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// reconciled runs turns until one of them finds nothing to do.
func reconciled(t *testing.T, a *agent.Agent) {
	t.Helper()
	for range 10 {
		if a.Reconcile(t.Context()); a.IsIdle() {
			return
		}
	}
	t.Fatalf("ten turns left something to do: %+v", a.Status())
}

// TestASweepSparesATurnWhereEveryLinkIsUnchanged has no reconcile spent on a node at rest
// but for one in 30 seconds, and one at once where a link changed.
func TestASweepSparesATurnWhereEveryLinkIsUnchanged(t *testing.T) {
	need.Kernel(t)
	world.NeedLink(t, "tcx/ingress")
	w := world.New(t)
	world.Veth(t, "id0", "id1")
	now, o := world.NewClock(), w.Options()
	o.Clock = now.Now
	a, err := agent.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	w.Give(a, world.Version(w, "1", v1alpha1.Attachment{Hook: "tcx/ingress", Interfaces: &v1alpha1.Interfaces{Names: []string{"id0"}}}))
	w.Give(a, w.Intent("member", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "id0")}))
	reconciled(t, a)
	now.Forward(29 * time.Second)
	for range 40 {
		if !a.IsIdle() {
			t.Fatal("a sweep within 30 seconds is spared no turn")
		}
	}
	if now.Forward(time.Second); a.IsIdle() {
		t.Error("a sweep after 30 seconds is spared a turn")
	}
	for _, s := range a.Status() {
		l := s.Programs[0].Links[0]
		kind := ebpf.XDP
		if l.Hook != "xdp" {
			kind = ebpf.SchedCLS
		}
		held, err := link.NewFromID(link.ID(l.ID))
		if err != nil {
			t.Fatal(err)
		}
		// In this order: a detached link takes no program.
		for _, disturb := range []func() error{func() error { return held.Update(world.ForeignProgram(t, kind)) }, held.Detach} {
			reconciled(t, a)
			if err := disturb(); err != nil {
				t.Fatal(err)
			}
			if a.IsIdle() {
				t.Errorf("%s: a sweep saw no change of its link", l.Hook)
			}
		}
		_ = held.Close()
	}
}

// TestASweepTakesATurnWhileSomethingIsLeftToDo has failures tried again by sweeps.
func TestASweepTakesATurnWhileSomethingIsLeftToDo(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, err := agent.New(w.Options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	w.Give(a, w.Intent("raw", "raw_tp_count", v1alpha1.Program{Name: "raw_tp_count",
		Attach: []v1alpha1.Attachment{{Hook: "raw_tp", Tracepoint: "no_such_tracepoint"}}}))
	for range 5 {
		if a.Reconcile(t.Context()); a.IsIdle() {
			t.Fatalf("a sweep takes no turn although an application failed: %+v", a.Status())
		}
	}
}

// TestAnApplicationThatWaitsForAnInterfaceCostsNoTurns: the kernel reports the
// interface when it comes.
func TestAnApplicationThatWaitsForAnInterfaceCostsNoTurns(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, err := agent.New(w.Options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	w.Give(a, w.Intent("later", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "nosuch0")}))
	reconciled(t, a)
}
