package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestWhatFailedOfAnotherDelaysNoRetryOnAnInterface has one application fail for so
// long that it is tried seldom, and another tenant's come to the same interface.
func TestWhatFailedOfAnotherDelaysNoRetryOnAnInterface(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	foreign, err := link.AttachXDP(link.XDPOptions{Program: world.ForeignProgram(t, ebpf.XDP), Interface: world.Index(t, "cn0")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Close() }()
	now := world.NewClock()
	o := w.Options()
	o.Clock, o.BackOff = now.Now, agent.BackOff{First: time.Second, Most: time.Hour}
	a := w.Idle(o)
	first := world.Tenant(world.XDP(w, "xdp_count", "count_packets", "cn0"), "area", "first", 1, 1)
	second := world.Tenant(world.XDP(w, "xdp_pass", "xdp_pass", "cn0"), "home", "second", 2, 2)
	if err := a.Accept(w.Seal(first)); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the first one to fail", time.Minute, func() bool { a.Reconcile(t.Context()); return world.ErrorOf(a, first) != "" })
	for range 15 {
		now.Forward(2 * time.Hour)
		a.Reconcile(t.Context())
	}
	if err := a.Accept(w.Seal(second)); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the second one to fail", time.Minute, func() bool { a.Reconcile(t.Context()); return world.ErrorOf(a, second) != "" })
	if err := foreign.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		a.Reconcile(t.Context())
	}
	if world.At(a, second) != "" {
		t.Error("it was tried again at once")
	}
	now.Forward(2 * time.Second)
	world.Until(t, "both to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, first) && world.IsIn(a, second) })
}

// TestAChainThatCannotBeLoadedIsNotTriedAgainAtEachTurn stops the clock after the kernel
// rejected a change of a chain.
func TestAChainThatCannotBeLoadedIsNotTriedAgainAtEachTurn(t *testing.T) {
	need.Kernel(t)
	for sentence, change := range map[string]func(w *world.World) []intent.Payload{
		"a member changes its place": func(w *world.World) []intent.Payload {
			return []intent.Payload{world.Member(w, "cc", "xdp_gpl", "xdp_gpl", 0)}
		},
		"a member goes elsewhere": func(w *world.World) []intent.Payload {
			return []intent.Payload{w.Intent("ca", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "cn1")})}
		},
		"a member gets another version": func(w *world.World) []intent.Payload {
			return []intent.Payload{world.Member(w, "ca", "xdp_count_v2", "count_packets", 1)}
		},
		"a member changes its place, and one more is to come": func(w *world.World) []intent.Payload {
			return []intent.Payload{world.Member(w, "cc", "xdp_gpl", "xdp_gpl", 0), world.Member(w, "cd", "xdp_pass", "xdp_pass", 4)}
		},
		"more are to come": func(w *world.World) []intent.Payload {
			return []intent.Payload{world.Member(w, "cd", "xdp_pass", "xdp_pass", 4), world.Member(w, "ce", "xdp_pass", "xdp_pass", 5), world.Member(w, "cf",
				"xdp_pass", "xdp_pass", 6)}
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "cn0", "cn1")
			now := world.NewClock()
			o := w.Options()
			o.Clock, o.BackOff = now.Now, agent.BackOff{First: time.Second, Most: time.Hour}
			a := w.Idle(o)
			loads := refuseThree(w, a, func([]string) bool { return true })
			w.Give(a, change(w)...)
			turns(t, a, 20)
			before := loads()
			if before == 0 {
				t.Error("nothing was loaded")
			}
			turns(t, a, 20)
			if n := loads() - before; n != 0 {
				t.Errorf("%d loads in 20 turns of no time", n)
			}
			now.Forward(2 * time.Hour)
			turns(t, a, 20)
			if loads() == before {
				t.Error("it was not tried again")
			}
			a.RefuseChains(func([]string) error { return nil })
			now.Forward(2 * time.Hour)
			world.Until(t, "the change to be made", time.Minute, func() bool {
				a.Reconcile(t.Context())
				return !slices.ContainsFunc(a.Status(), func(s agent.ApplicationStatus) bool { return s.Error != "" })
			})
		})
	}
}

// TestWhatIsToBeUnloadedWaitsForNoBackOff has the chain without a member rejected for
// long, which is then to be unloaded.
func TestWhatIsToBeUnloadedWaitsForNoBackOff(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	now := world.NewClock()
	o := w.Options()
	o.Clock, o.BackOff = now.Now, agent.BackOff{First: time.Second, Most: time.Hour}
	a := w.Idle(o)
	loads := refuseThree(w, a, func(members []string) bool { return !slices.Contains(members, "ca") })
	elsewhere := w.Intent("ca", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "cn1")})
	w.Give(a, elsewhere)
	for range 15 {
		turns(t, a, 3)
		now.Forward(2 * time.Hour)
	}
	turns(t, a, 3)
	w.Give(a, w.Tombstone(elsewhere))
	turns(t, a, 3)
	for range 9 {
		before := loads()
		now.Forward(3 * time.Second)
		if turns(t, a, 3); loads() == before {
			t.Error("it was not tried again after three seconds")
		}
	}
	if got := world.MembersOf(t, a); got != "ca cb cc" {
		t.Errorf("the chain is %q, and what hinders it may pass", got)
	}
	a.RefuseChains(func([]string) error { return nil })
	now.Forward(3 * time.Second)
	world.Until(t, "it to be gone", time.Minute, func() bool { a.Reconcile(t.Context()); return world.MembersOf(t, a) == "cb cc" })
}

// refuseThree runs ca, cb and cc in a chain, has the kernel reject every other chain that
// is rejected, and counts the attempts.
func refuseThree(w *world.World, a *agent.Agent, refused func(members []string) bool) (loads func() int) {
	w.T.Helper()
	all := []intent.Payload{world.Member(w, "ca", "xdp_count", "count_packets", 1), world.Member(w, "cb", "xdp_pass", "xdp_pass", 2), world.Member(w, "cc",
		"xdp_gpl", "xdp_gpl", 3)}
	w.Give(a, all...)
	world.Until(w.T, "three to share an interface", time.Minute, func() bool { a.Reconcile(w.T.Context()); return world.MembersOf(w.T, a) == "ca cb cc" })
	var n atomic.Int64
	a.RefuseChains(func(members []string) error {
		if !refused(members) {
			return nil
		}
		n.Add(1)
		return fmt.Errorf("load chain: %w", unix.ENOMEM)
	})
	return func() int { return int(n.Load()) }
}

// turns has the agent go round, each time until nothing is being loaded.
func turns(t *testing.T, a *agent.Agent, n int) {
	t.Helper()
	for range n {
		a.Reconcile(t.Context())
		world.Until(t, "the loads to end", time.Minute, func() bool { return !a.IsLoading() })
	}
}

func TestFailuresBackOff(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	tries := make(chan time.Time, 64)
	o := w.Options()
	o.Fetch = func(context.Context, string) ([]byte, error) {
		select {
		case tries <- time.Now():
		default:
		}
		return nil, errors.New("the registry hangs up")
	}
	o.SweepInterval, o.BackOff = time.Millisecond, agent.BackOff{First: 50 * time.Millisecond, Most: time.Hour}
	a := w.StartWith(o)
	if err := w.Accept(a, w.Intent("app", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rf0")})); err == nil {
		t.Error("Settled reports nothing")
	}
	var at []time.Time
	for range 5 {
		select {
		case one := <-tries:
			at = append(at, one)
		case <-time.After(time.Minute):
			t.Fatalf("it was tried %d times", len(at))
		}
	}
	// After 50, 100 and 200 ms the fourth wait is 400 ms and its jitter; one
	// that did not grow would be 50.
	if waited := at[4].Sub(at[3]); waited < 200*time.Millisecond {
		t.Errorf("the fifth try came after %v", waited)
	}
	if s := a.Status()[0]; !strings.Contains(s.Error, "hangs up") {
		t.Errorf("Error = %q", s.Error)
	}
}
