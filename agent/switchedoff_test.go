package agent_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// stateOf is the state of the only link of an application.
func stateOf(t *testing.T, a *agent.Agent, name string) agent.LinkState {
	t.Helper()
	return world.LinkOf(t, a, name).State
}

// TestWhatIsRevokedEndsWhereTheNodeCannotBeLookedAt has every look at the interfaces fail: members of a chain are switched
// off, links are closed, and a chain that has nothing else is detached.
func TestWhatIsRevokedEndsWhereTheNodeCannotBeLookedAt(t *testing.T) {
	need.Kernel(t)
	world.NeedLink(t, "tcx/ingress")
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	world.Veth(t, "cn2", "cn3")
	a, _ := w.Start()
	alone := w.Intent("alone", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "cn2")})
	linked := w.Intent("linked", "tcx_count", v1alpha1.Program{Name: "count_ingress", Attach: world.On("tcx/ingress", "cn0")})
	gone := world.Member(w, "gone", "xdp_count", "count_packets", 4)
	world.Must(t, w.Accept(a, alone, linked, gone, world.Member(w, "young", "xdp_count_v2", "count_packets", 2)))
	link := world.LinkOf(t, a, "alone").ID
	a.FailLooks(errors.New("dump interfaces: no buffer space available"))
	w.Give(a, w.Tombstone(alone), w.Tombstone(linked), w.Tombstone(gone))
	for _, name := range []string{"alone", "linked", "gone"} {
		world.Until(t, name+" to be worked on", time.Minute, func() bool { return reportOf(a, name).Unloading })
		if s := reportOf(a, name); name != "gone" && (s.Revision != "" || len(s.Programs) > 0) {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if world.Runs(t, link) != 0 {
		t.Error("the only member of a chain runs still")
	}
	if s := reportOf(a, "gone"); stateOf(t, a, "gone") != agent.SwitchedOff || !strings.Contains(s.Conditions[0].Message, "no buffer space") {
		t.Errorf("gone: %+v", s)
	}
	if s := world.StatusOf(a, "young"); s.Conditions[0].Status != "True" || stateOf(t, a, "young") != agent.Attached {
		t.Errorf("young: %+v", s)
	}
	before := runsOf(t, a)
	world.Send(t, "cn1", 5)
	world.Until(t, "the packets to pass the other", time.Minute, func() bool { return runsOf(t, a)["young"] >= before["young"]+5 })
	if now := runsOf(t, a); now["gone"] != before["gone"] {
		t.Errorf("packets passed %v, and %v before", now, before)
	}
	a.FailLooks(nil)
	world.Until(t, "the revoked ones to be gone", time.Minute, func() bool { return world.StatusOf(a, "gone") == nil && world.StatusOf(a, "alone") == nil })
	world.Must(t, w.Accept(a))
}

// TestNobodyIsSwitchedOnBeforeALook restarts the agent while a member is off whose intent is lost, and another one is revoked
// where no look succeeds.
func TestNobodyIsSwitchedOnBeforeALook(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, stop := w.Start()
	lost, gone := world.Member(w, "lost", "xdp_count", "count_packets", 4), world.Member(w, "gone", "xdp_gpl", "xdp_gpl", 3)
	world.Must(t, w.Accept(a, world.Member(w, "older", "xdp_pass", "xdp_pass", 1), gone, lost))
	a.RefuseChains(func([]string) error { return os.ErrPermission })
	if err := w.Accept(a, w.Tombstone(lost)); err == nil {
		t.Fatal("the chain was loaded without it")
	}
	stop()
	forget(w, lost)
	a, err := agent.New(w.Options())
	world.Must(t, err)
	a.FailLooks(errors.New("dump interfaces: no buffer space available"))
	// The first reconcile has it.
	w.Give(a, w.Tombstone(gone))
	stop = w.Serve(a)
	world.Until(t, "the tombstone to be worked on", time.Minute, func() bool { s := reportOf(a, "gone"); return s != nil && s.Unloading })
	chains, err := a.Chains()
	world.Must(t, err)
	for i, off := range []bool{false, true, true} {
		if m := chains[0].Members[i]; m.SwitchedOff != off {
			t.Errorf("%s is switched off: %v", m.Application, m.SwitchedOff)
		}
	}
	stop()
}

// TestASwitchedOffMemberIsReportedAsSuch has the kernel take no other chain.
func TestASwitchedOffMemberIsReportedAsSuch(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, stop := w.Start()
	gone := world.Member(w, "gone", "xdp_count", "count_packets", 4)
	world.Must(t, w.Accept(a, world.Member(w, "older", "xdp_pass", "xdp_pass", 1), gone))
	if got := stateOf(t, a, "gone"); got != agent.Attached {
		t.Fatalf("it is %s", got)
	}
	// With one more member, the chain without it has two.
	world.Must(t, w.Accept(a, world.Member(w, "young", "xdp_gpl", "xdp_gpl", 2)))
	a.RefuseChains(func([]string) error { return os.ErrPermission })
	if err := w.Accept(a, w.Tombstone(gone)); err == nil {
		t.Fatal("the chain was loaded without it")
	}
	s := world.StatusOf(a, "gone")
	if c := s.Conditions[0]; stateOf(t, a, "gone") != agent.SwitchedOff || c.Reason != "Unloading" ||
		!strings.HasPrefix(c.Message, "it is switched off, and runs no more") {
		t.Errorf("gone: %+v", s)
	}
	if got := stateOf(t, a, "older"); got != agent.Attached {
		t.Errorf("older is %s", got)
	}
	stop()
	forget(w, gone)
	a, err := agent.New(w.Options())
	world.Must(t, err)
	a.RefuseChains(func([]string) error { return os.ErrPermission })
	w.Serve(a)
	world.Until(t, "what is lost to be reported", time.Minute, func() bool {
		s := world.StatusOf(a, "gone")
		return s != nil && strings.HasPrefix(s.Conditions[0].Message, "it is switched off")
	})
}

// forget loses the intents of an application.
func forget(w *world.World, p intent.Payload) {
	w.T.Helper()
	for _, file := range []string{".newest", ".deployed"} {
		if err := os.Remove(w.Dir + "/state/intents/" + p.UID + file); err != nil && !errors.Is(err, os.ErrNotExist) {
			w.T.Fatal(err)
		}
	}
}
