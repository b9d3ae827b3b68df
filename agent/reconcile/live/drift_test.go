package live_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/recommended"
)

func TestWhatOthersPutUnderALinkIsPutRight(t *testing.T) {
	need.Kernel(t)
	for _, hook := range []string{"xdp", "tcx/ingress"} {
		t.Run(hook, func(t *testing.T) {
			world.NeedLink(t, hook)
			w := world.New(t)
			world.Veth(t, "dr0", "dr1")
			a, _ := w.Start()
			at := v1alpha1.Attachment{Hook: hook, Interfaces: &v1alpha1.Interfaces{Names: []string{"dr0"}}}
			if err := w.Accept(a, world.Version(w, "1", at)); err != nil {
				t.Fatal(err)
			}
			program, l := world.One(t, a)
			kind := ebpf.XDP
			if hook != "xdp" {
				kind = ebpf.SchedCLS
			}
			theirs := world.ForeignProgram(t, kind)
			held, err := link.NewFromID(link.ID(l.ID))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = held.Close() }()
			if err := held.Update(theirs); err != nil {
				t.Fatal(err)
			}
			world.Until(t, "our program to be back", time.Minute, func() bool { return uint32(world.Runs(t, l.ID)) == program.ID })
		})
	}
}

func TestEveryPinThatIsRemovedComesBack(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "dr0", "dr1")
	a, _ := w.Start()
	if err := w.Accept(a,
		world.Version(w, "1", v1alpha1.Attachment{Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: []string{"dr0"}}}),
		w.Intent("other", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "dr0")}),
		w.Intent("raw", "raw_tp_count", world.RawProgram()),
	); err != nil {
		t.Fatal(err)
	}
	pins := world.Pins(w)
	if len(pins) < 10 {
		t.Fatalf("pins = %v", pins)
	}
	for _, pin := range pins {
		if err := os.Remove(pin); err != nil {
			t.Fatal(err)
		}
	}
	world.Until(t, "all pins to be back", time.Minute, func() bool { return slices.Equal(world.Pins(w), pins) })
	if err := os.Rename(filepath.Join(w.BPFFS, "uid-raw"), w.BPFFS+"-gone"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(w.BPFFS + "-gone") })
	world.Until(t, "the directory to be back", time.Minute, func() bool { return slices.Equal(world.Pins(w), pins) })
}

// takeAway detaches a link or deletes a filter, and reports whether it was there.
func takeAway(t *testing.T, l agent.LinkStatus) bool {
	t.Helper()
	if l.Filter != "" {
		found := world.FiltersOf(t, l.Target, strings.HasSuffix(l.Hook, "egress"))
		return len(found) > 0 && netlink.FilterDel(found[0]) == nil
	}
	held, err := link.NewFromID(link.ID(l.ID))
	if err != nil {
		return false
	}
	defer func() { _ = held.Close() }()
	info, err := held.Info()
	return err == nil && info.TCX().Ifindex != 0 && held.Detach() == nil
}

func TestALinkThatOthersKeepTakingAwayIsContested(t *testing.T) {
	need.Kernel(t)
	for _, hook := range []string{"tcx/ingress", "tc/ingress"} {
		t.Run(hook, func(t *testing.T) { isContested(t, hook) })
	}
}

func isContested(t *testing.T, hook string) {
	world.NeedHook(t, hook)
	w := world.New(t)
	world.Veth(t, "dr0", "dr1")
	a, _ := w.Start()
	at := v1alpha1.Attachment{Hook: hook, Interfaces: &v1alpha1.Interfaces{Names: []string{"dr0"}}}
	if err := w.Accept(a, world.Version(w, "1", at)); err != nil {
		t.Fatal(err)
	}
	detached := 0
	world.Until(t, "the link to be called contested", time.Minute, func() bool {
		_, l := world.One(t, a)
		if l.State == agent.DriftConflict {
			return true
		}
		if takeAway(t, l) {
			detached++
		}
		return false
	})
	if detached < 5 {
		t.Errorf("contested after %d times", detached)
	}
	s := a.Status()[0]
	if !strings.Contains(s.Error, "took it away") || s.Conditions[0].Status != "False" {
		t.Errorf("status = %+v", s)
	}
	world.Until(t, "it to be put back once more", time.Minute, func() bool {
		_, l := world.One(t, a)
		return l.State == agent.Attached && world.RunsUnder(t, l) != 0
	})
	recommended.Run(t, s.Error, "bpftool link", "bpftool net", "skep inventory")
}

// TestTheLastApplicationGoesQuietly has the watched directories go with it.
func TestTheLastApplicationGoesQuietly(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	var said strings.Builder
	o := w.Options()
	o.Log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	a, stop := w.Run(o)
	for range 5 {
		p := w.Intent("app", "raw_tp_count", world.RawProgram())
		w.Serial++
		tomb := intent.Payload{Application: p.Application, UID: p.UID, Serial: w.Serial, Tombstone: true}
		if err := errors.Join(w.Accept(a, p), w.Accept(a, tomb)); err != nil {
			t.Fatal(err)
		}
	}
	w.LeavesNothing()
	stop()
	if strings.Contains(said.String(), "watch pins") {
		t.Errorf("the log says:\n%s", said.String())
	}
}

// TestAJoinerLeavesAContestedChainContested: nobody is left out of a chain that waits, so nothing goes on at once.
func TestAJoinerLeavesAContestedChainContested(t *testing.T) {
	need.Kernel(t)
	world.NeedLink(t, "xdp")
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	var log strings.Builder
	o := w.Options()
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	a, stop := w.Run(o)
	runs := world.Member(w, "runs", "xdp_count", "count_packets", 1)
	if err := w.Accept(a, runs); err != nil {
		t.Fatal(err)
	}
	joined := false
	world.Until(t, "both to be called contested", time.Minute, func() bool {
		states := map[agent.LinkState]int{}
		for _, s := range a.Status() {
			for _, p := range s.Programs {
				for _, l := range p.Links {
					states[l.State]++
					if held, err := link.NewFromID(link.ID(l.ID)); l.State == agent.Attached && err == nil {
						_ = held.Detach()
						_ = held.Close()
					}
				}
			}
		}
		if states[agent.DriftConflict] == 1 && !joined {
			joined = true
			w.Give(a, world.Member(w, "joins", "xdp_pass", "xdp_pass", 2))
		}
		return states[agent.DriftConflict] == 2
	})
	stop()
	if strings.Contains(log.String(), "go on with a part of the chain") {
		t.Errorf("the log says:\n%s", log.String())
	}
}
