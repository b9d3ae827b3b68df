package agent_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestWhatFailedOfAnotherDelaysNoRetryOnAnInterface has one application fail for so
// long that it is tried seldom, and another tenant's come to the same interface.
func TestWhatFailedOfAnotherDelaysNoRetryOnAnInterface(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "cn0", "cn1")
	foreign, err := link.AttachXDP(link.XDPOptions{Program: foreignProgram(t, ebpf.XDP), Interface: index(t, "cn0")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Close() }()
	now := newClock()
	o := w.options()
	o.Clock, o.BackOff = now.Now, agent.BackOff{First: time.Second, Most: time.Hour}
	a := w.idle(o)
	first := tenant(w.xdp("xdp_count", "count_packets", "cn0"), "area", "first", 1, 1)
	second := tenant(w.xdp("xdp_pass", "xdp_pass", "cn0"), "home", "second", 2, 2)
	if err := a.Accept(w.seal(first)); err != nil {
		t.Fatal(err)
	}
	until(t, "the first one to fail", time.Minute, func() bool { a.Reconcile(t.Context()); return errorOf(a, first) != "" })
	for range 15 {
		now.forward(2 * time.Hour)
		a.Reconcile(t.Context())
	}
	if err := a.Accept(w.seal(second)); err != nil {
		t.Fatal(err)
	}
	until(t, "the second one to fail", time.Minute, func() bool { a.Reconcile(t.Context()); return errorOf(a, second) != "" })
	if err := foreign.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		a.Reconcile(t.Context())
	}
	if at(a, second) != "" {
		t.Error("it was tried again at once")
	}
	now.forward(2 * time.Second)
	until(t, "both to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, first) && isIn(a, second) })
}

// TestAChainThatCannotBeLoadedIsNotTriedAgainAtEachTurn stops the clock after the kernel
// rejected a change of a chain.
func TestAChainThatCannotBeLoadedIsNotTriedAgainAtEachTurn(t *testing.T) {
	need.Kernel(t)
	for sentence, change := range map[string]func(w *world) []intent.Payload{
		"a member changes its place": func(w *world) []intent.Payload {
			return []intent.Payload{w.member("cc", "xdp_gpl", "xdp_gpl", 0)}
		},
		"a member goes elsewhere": func(w *world) []intent.Payload {
			return []intent.Payload{w.intent("ca", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: on("xdp", "cn1")})}
		},
		"a member gets another version": func(w *world) []intent.Payload {
			return []intent.Payload{w.member("ca", "xdp_count_v2", "count_packets", 1)}
		},
		"a member changes its place, and one more is to come": func(w *world) []intent.Payload {
			return []intent.Payload{w.member("cc", "xdp_gpl", "xdp_gpl", 0), w.member("cd", "xdp_pass", "xdp_pass", 4)}
		},
		"more are to come": func(w *world) []intent.Payload {
			return []intent.Payload{w.member("cd", "xdp_pass", "xdp_pass", 4), w.member("ce", "xdp_pass", "xdp_pass", 5), w.member("cf", "xdp_pass", "xdp_pass", 6)}
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			veth(t, "cn0", "cn1")
			now := newClock()
			o := w.options()
			o.Clock, o.BackOff = now.Now, agent.BackOff{First: time.Second, Most: time.Hour}
			a := w.idle(o)
			loads := w.refuseThree(a, func([]string) bool { return true })
			w.give(a, change(w)...)
			turns(t, a, 20)
			before := loads()
			if before == 0 {
				t.Error("nothing was loaded")
			}
			turns(t, a, 20)
			if n := loads() - before; n != 0 {
				t.Errorf("%d loads in 20 turns of no time", n)
			}
			now.forward(2 * time.Hour)
			turns(t, a, 20)
			if loads() == before {
				t.Error("it was not tried again")
			}
			a.RefuseChains(func([]string) error { return nil })
			now.forward(2 * time.Hour)
			until(t, "the change to be made", time.Minute, func() bool {
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
	w := newWorld(t)
	veth(t, "cn0", "cn1")
	now := newClock()
	o := w.options()
	o.Clock, o.BackOff = now.Now, agent.BackOff{First: time.Second, Most: time.Hour}
	a := w.idle(o)
	loads := w.refuseThree(a, func(members []string) bool { return !slices.Contains(members, "ca") })
	elsewhere := w.intent("ca", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: on("xdp", "cn1")})
	w.give(a, elsewhere)
	for range 15 {
		turns(t, a, 3)
		now.forward(2 * time.Hour)
	}
	turns(t, a, 3)
	w.give(a, w.tombstone(elsewhere))
	turns(t, a, 3)
	for range 9 {
		before := loads()
		now.forward(3 * time.Second)
		if turns(t, a, 3); loads() == before {
			t.Error("it was not tried again after three seconds")
		}
	}
	if got := membersOf(t, a); got != "ca cb cc" {
		t.Errorf("the chain is %q, and what hinders it may pass", got)
	}
	a.RefuseChains(func([]string) error { return nil })
	now.forward(3 * time.Second)
	until(t, "it to be gone", time.Minute, func() bool { a.Reconcile(t.Context()); return membersOf(t, a) == "cb cc" })
}

// refuseThree runs ca, cb and cc in a chain, has the kernel reject every other chain that
// is rejected, and counts the attempts.
func (w *world) refuseThree(a *agent.Agent, refused func(members []string) bool) (loads func() int) {
	w.t.Helper()
	all := []intent.Payload{w.member("ca", "xdp_count", "count_packets", 1), w.member("cb", "xdp_pass", "xdp_pass", 2), w.member("cc", "xdp_gpl", "xdp_gpl", 3)}
	w.give(a, all...)
	until(w.t, "three to share an interface", time.Minute, func() bool { a.Reconcile(w.t.Context()); return membersOf(w.t, a) == "ca cb cc" })
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
		until(t, "the loads to end", time.Minute, func() bool { return !a.IsLoading() })
	}
}
