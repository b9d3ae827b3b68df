package agent_test

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// BenchmarkEndingProbes unloads 200 uprobes of one application, and then a program of another. It
// reports the longest reconcile, how long the second unload takes, and how long both do.
func BenchmarkEndingProbes(b *testing.B) {
	var longest, other, both time.Duration
	for b.Loop() {
		w := world.New(b)
		o := w.Options()
		o.Log, o.SweepInterval = slog.New(slog.NewTextHandler(io.Discard, nil)), time.Hour
		a, err := agent.New(o)
		if err != nil {
			b.Fatal(err)
		}
		revoked := world.Version(w, "1", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter"})
		revoked.UID, revoked.Application.Name = "uid-other", "other"
		many := world.ManyPlaces(w, 200)
		w.Give(a, many, revoked)
		world.Until(b, "both to be attached", time.Minute, func() bool {
			a.Reconcile(b.Context())
			return world.LinkPins(w, many.UID) == 200 && world.LinkPins(w, revoked.UID) == 1
		})
		began := time.Now()
		reconcile := func() {
			at := time.Now()
			a.Reconcile(b.Context())
			longest = max(longest, time.Since(at))
		}
		w.Give(a, w.Tombstone(many))
		reconcile()
		w.Give(a, w.Tombstone(revoked))
		gave := time.Now()
		world.Until(b, "the other to be unloaded", time.Minute, func() bool { reconcile(); return isUnloaded(a, revoked) })
		other += time.Since(gave)
		world.Until(b, "all to be unloaded", 5*time.Minute, func() bool { reconcile(); return isUnloaded(a, many) })
		both += time.Since(began)
		if err := a.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(longest.Milliseconds()), "longest-ms")
	b.ReportMetric(float64(other.Milliseconds())/float64(b.N), "other-ms")
	b.ReportMetric(float64(both.Milliseconds())/float64(b.N), "both-ms")
}

// TestLinksThatEndSlowlyAreClosedBesideTheLoop unloads an application with many uprobes, and
// stops the agent amid that. Nothing is called unloaded before the kernel ended it, whatever
// happens, and others are unloaded meanwhile.
func TestLinksThatEndSlowlyAreClosedBesideTheLoop(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, stop := w.Start()
	many := world.ManyPlaces(w, world.Places)
	if err := w.Accept(a, many); err != nil {
		t.Fatal(err)
	}
	ids := idsOf(a, many)
	if len(ids) != world.Places {
		t.Fatalf("%d links are told, want %d", len(ids), world.Places)
	}
	ran := func() (n int) {
		for _, id := range ids {
			if world.Runs(t, id) != 0 {
				n++
			}
		}
		return n
	}
	w.Give(a, w.Tombstone(many))
	world.Until(t, "some of the links to end", time.Minute, func() bool {
		s := world.StatusOf(a, many.Application.Name)
		return ran() < world.Places && s.Conditions[0].Reason != "Deployed"
	})
	if s := world.StatusOf(a, many.Application.Name); s.Conditions[0].Reason != "Unloading" || !strings.Contains(s.Conditions[0].Message, "are being closed") {
		t.Errorf("while links are being closed: %+v", s.Conditions[0])
	}
	stop()
	if ran() == 0 {
		t.Fatal("all links ended before the agent was stopped")
	}
	a, _ = w.Start()
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	if n := ran(); n != 0 {
		t.Errorf("%d links run after the agent said that they do not", n)
	}
	w.LeavesNothing()
}

// TestTheLastLinksOfWhatStaysAreReportedAsClosing has the only pod go that an application is attached in, which it is to be
// in still: until the kernel ended its links there, it is not called deployed.
func TestTheLastLinksOfWhatStaysAreReportedAsClosing(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	const few = 10
	w, r := world.New(t), world.NewRuntime(t)
	functions := []userbinary.Function{{Name: "f", Code: bytes.Repeat([]byte{0x90}, few)}}
	world.Must(t, os.WriteFile(filepath.Join(r.Image, "many"), userbinary.Make(functions, userbinary.Options{}), 0o755))
	pod := r.Start("team-a", "web", "app", nil)
	a, _ := world.StartOn(w, r)
	p := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
	p.Programs[0].Attach = nil
	for i := range uint64(few) {
		at := world.InPods(v1alpha1.Pods{})
		at.Binary = &v1alpha1.UserBinary{Path: "/many", Offset: userbinary.Offset(functions, 0) + i}
		p.Programs[0].Attach = append(p.Programs[0].Attach, at)
	}
	world.Must(t, w.Accept(a, p))
	world.HasLinks(w, a, p.UID, few)
	ids := idsOf(a, p)
	let := a.HoldClosings(p.UID)
	t.Cleanup(let)
	pod.Ends()
	says := func(reason string) func() bool {
		return func() bool {
			// The status comes first: what ended while the test looks is no contradiction.
			s := world.StatusOf(a, p.Application.Name)
			if s.IsAttached() {
				return false
			}
			c, runs := s.Conditions[0], slices.ContainsFunc(ids, func(id uint32) bool { return world.Runs(t, id) != 0 })
			if c.Reason == "Deployed" && runs {
				t.Fatalf("links are being closed: %+v", c)
			}
			return c.Reason == reason && (reason == "Deployed" || c.Status == "False" && strings.Contains(c.Message, "are being closed"))
		}
	}
	world.Until(t, "links to be reported as closing", time.Minute, says("Unloading"))
	let()
	world.Until(t, "it to be deployed nowhere", time.Minute, says("Deployed"))
}

// TestReplacedProbesEndOneByOne updates an application with many uprobes: at no time does more
// than one of its places have two programs that wait for their end.
func TestReplacedProbesEndOneByOne(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	few := world.ManyPlaces(w, 10)
	if err := w.Accept(a, few); err != nil {
		t.Fatal(err)
	}
	old := idsOf(a, few)
	newer := few
	w.Serial++
	newer.Serial, newer.Variables = w.Serial, world.Versioned("2")
	w.Give(a, newer)
	most := 0
	world.Until(t, "all places to have another link", time.Minute, func() bool {
		now, ran := idsOf(a, newer), 0
		for _, id := range old {
			if world.Runs(t, id) != 0 {
				ran++
			}
		}
		made := 0
		for _, id := range now {
			if !slices.Contains(old, id) {
				made++
			}
		}
		most = max(most, ran+made-len(old))
		return made == len(old) && ran == 0
	})
	if most > 2 {
		t.Errorf("%d places had two programs at once, want at most the one that is being closed and the next one", most)
	}
}

// idsOf are the ids of the links that an agent tells of an application.
func idsOf(a *agent.Agent, p intent.Payload) (ids []uint32) {
	for _, s := range a.Status() {
		for _, program := range s.Programs {
			for _, l := range program.Links {
				if s.UID == p.UID {
					ids = append(ids, l.ID)
				}
			}
		}
	}
	return ids
}

// isUnloaded reports whether an agent says that nothing of an application is left.
func isUnloaded(a *agent.Agent, p intent.Payload) bool {
	return slices.ContainsFunc(a.Report(), func(s agent.ApplicationStatus) bool {
		return s.UID == p.UID && len(s.Conditions) > 0 && s.Conditions[0].Reason == "Unloaded"
	})
}
