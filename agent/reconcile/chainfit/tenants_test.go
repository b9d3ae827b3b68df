package chainfit_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestATeamIsNotToldWhoseProgramAChainCannotBeMadeWith: two teams and the cluster have programs on an interface, and the object of one
// team is lost. What else is to change there cannot, and the status of the other team's says so without a name of the first.
func TestATeamIsNotToldWhoseProgramAChainCannotBeMadeWith(t *testing.T) {
	need.Kernel(t)
	const told = "the chain of the interface cannot be made with a program of an application of another namespace"
	lost := func(w *world.World) intent.Payload {
		return world.Tenant(world.Member(w, "x", "xdp_pass", "xdp_pass", 0), "beta", "secret", 1, 2)
	}
	own := func(w *world.World) intent.Payload {
		return world.Tenant(world.Member(w, "y", "xdp_count", "count_packets", 0), "alpha", "own", 2, 3)
	}
	for sentence, c := range map[string]struct {
		change func(w *world.World) intent.Payload
		want   string
	}{
		"its program lets others run after other verdicts": {
			func(w *world.World) intent.Payload {
				p := own(w)
				p.Programs[0].Attach[0].ProceedOn = []string{"Drop"}
				return p
			}, "change the chain of cn0: it stays as it is: " + told},
		"its program leaves": {func(w *world.World) intent.Payload { return w.Tombstone(own(w)) },
			"leave the chain of cn0: it is switched off, and is there still: " + told},
		"it comes with another program": {
			func(w *world.World) intent.Payload {
				return world.Tenant(world.Member(w, "z", "xdp_count_v2", "count_packets", 0), "alpha", "more", 3, 4)
			}, told},
		"an administrator's leaves": {
			func(w *world.World) intent.Payload {
				return w.Tombstone(world.Member(w, "ca", "xdp_gpl", "xdp_gpl", 1))
			}, "fetch object of beta/secret: "},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "cn0", "cn1")
			a, _ := w.Start()
			w.Must(a, world.Member(w, "ca", "xdp_gpl", "xdp_gpl", 1), lost(w), own(w))
			world.Lose(w, lost(w))
			change := c.change(w)
			if err := w.Accept(a, change); err == nil {
				t.Error("nothing failed")
			}
			for _, s := range a.Status() {
				if s.UID != change.UID {
					continue
				}
				_, message := s.NodeState()
				if !strings.Contains(message, c.want) {
					t.Errorf("the status says %q, want %q", message, c.want)
				}
				if name := named(t, s, "beta", "secret", "xdp_pass"); name != "" && s.Application.IsNamespaced() {
					t.Errorf("a team reads %s: %+v", name, s)
				}
				return
			}
			t.Error("it has no status")
		})
	}
}

// TestATeamIsNotToldWhatTheNodeRuns: a tool has the interface, and an administrator reads its program, its process and the command that detaches it.
func TestATeamIsNotToldWhatTheNodeRuns(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, _ := w.Start()
	l, err := link.AttachXDP(link.XDPOptions{Program: world.ForeignProgram(t, ebpf.XDP), Interface: world.Index(t, "cn0"), Flags: link.XDPGenericMode})
	world.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	team := world.Tenant(world.Member(w, "y", "xdp_count", "count_packets", 0), "alpha", "own", 2, 3)
	if err := w.Accept(a, team); err == nil {
		t.Error("it displaced another program")
	}
	const told = "cn0 holds an XDP program that is not Skep's; choose another interface or hook, or have an administrator detach it"
	s := world.StatusOf(a, "own")
	if name := named(t, *s, "bpftool", "foreign", "pid"); !strings.Contains(s.Error, told) || name != "" {
		t.Errorf("a team reads %q, with %q", s.Error, name)
	}
	if err := w.Accept(a, w.Tombstone(team)); err != nil {
		t.Error(err)
	}
	if err := w.Accept(a, world.Member(w, "ca", "xdp_gpl", "xdp_gpl", 1)); err == nil || !strings.Contains(err.Error(), "bpftool link detach") {
		t.Errorf("an administrator reads %v", err)
	}
}

// named returns one of the names that a status has somewhere.
func named(t *testing.T, s agent.ApplicationStatus, names ...string) string {
	t.Helper()
	body, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.Contains(string(body), name) {
			return name
		}
	}
	return ""
}
