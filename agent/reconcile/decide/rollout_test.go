package decide_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// counting is a version of an application, which attaches to ro0.
func counting(w *world.World, object, function string) intent.Payload {
	return w.Intent("app", object, v1alpha1.Program{Name: function, Attach: world.On("xdp", "ro0")})
}

// step moves a rollout on, to this node or not.
func step(w *world.World, p intent.Payload, reached bool) intent.Payload {
	p.Version = p.VersionSerial()
	w.Serial++
	p.Serial, p.Rollout = w.Serial, &intent.Rollout{Step: p.Rollout.Step + 1}
	if reached {
		p.Rollout.Through = intent.NodeHash(p.UID, world.ThisNode)
	}
	return p
}

// deployed is the one application's state, and its condition Deployed.
func deployed(t *testing.T, a *agent.Agent) (agent.ApplicationStatus, metav1.Condition) {
	t.Helper()
	all := a.Report()
	if len(all) != 1 || len(all[0].Conditions) != 1 {
		t.Fatalf("Report = %+v", all)
	}
	return all[0], all[0].Conditions[0]
}

// ids are the kernel's ids of an application's program and link, which no reload
// keeps.
func ids(t *testing.T, a *agent.Agent) [2]uint32 {
	t.Helper()
	p, l := world.One(t, a)
	return [2]uint32{p.ID, l.ID}
}

func TestANodeThatARolloutHasNotComeToKeepsTheVersionBefore(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "ro0", "ro1")
	a, stop := w.Run(world.Named(w))
	first := counting(w, "xdp_count", "count_packets")
	if err := w.Accept(a, first); err != nil {
		t.Fatal(err)
	}
	before, runs := ids(t, a), a.Report()[0].Revision
	next := world.Over(counting(w, "xdp_count_v2", "count_packets"), &first)
	// Its object is not for this node yet.
	w.Mu.Lock()
	delete(w.Objects, next.ObjectDigest)
	w.Mu.Unlock()
	check := func(when string, same bool) {
		t.Helper()
		s, c := deployed(t, a)
		if !s.Held || s.Revision != runs || s.Wanted != runs || s.Serial != next.Serial || s.Version != first.Serial || c.Reason != "Deployed" {
			t.Errorf("%s: %+v", when, s)
		}
		if same && ids(t, a) != before {
			t.Errorf("%s: it was loaded again: %v, before %v", when, ids(t, a), before)
		}
	}
	if err := w.Accept(a, next); err != nil {
		t.Fatal(err)
	}
	check("at the first step", true)
	stop()
	a, stop = w.Run(world.Named(w))
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	check("after a restart", true)
	stop()
	// The intent itself says what was before.
	w.Reboot("ro0")
	if err := os.Remove(filepath.Join(w.Dir, "state", "intents", first.UID+".deployed")); err != nil {
		t.Fatal(err)
	}
	a, _ = w.Run(world.Named(w))
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	check("after a reboot, without the intent that ran", false)
}

func TestANodeThatARolloutHasNotComeToLoadsNothingWhereNothingWasBefore(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "ro0", "ro1")
	a, stop := w.Run(world.Named(w))
	app := world.Over(counting(w, "xdp_count", "count_packets"), nil)
	for range 2 {
		if err := w.Accept(a, app); err != nil {
			t.Fatal(err)
		}
		if s, c := deployed(t, a); !s.Held || s.Revision != "" || len(world.Targets(a)) != 0 || c.Reason != "Retained" {
			t.Errorf("held with nothing before: %+v", s)
		}
		stop()
		a, stop = w.Run(world.Named(w))
	}
	if err := w.Accept(a, step(w, app, true)); err != nil {
		t.Fatal(err)
	}
	if s, c := deployed(t, a); s.Held || c.Reason != "Deployed" || s.Version != app.Serial || len(world.Targets(a)) != 1 {
		t.Errorf("once it has come: %+v", s)
	}
}

// TestANodeThatFailsAVersionGoesBackAsItsIntentSays: what ran last may run on
// where the intent names it, and may not where it names nothing.
func TestANodeThatFailsAVersionGoesBackAsItsIntentSays(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		named  bool
		reason string
		links  int
	}{
		"the version before may run":  {true, "KeptPrevious", 1},
		"nothing that ran before may": {false, "Failed", 0},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "ro0", "ro1")
			a, stop := w.Run(world.Named(w))
			first := counting(w, "xdp_count", "count_packets")
			if err := w.Accept(a, first); err != nil {
				t.Fatal(err)
			}
			runs := a.Report()[0].Revision
			next := world.Over(counting(w, "xdp_rejected", "xdp_rejected"), nil)
			if c.named {
				next.Previous = &first
			}
			next.Rollout.Through = intent.NodeHash(next.UID, world.ThisNode)
			check := func(when string, err error) {
				t.Helper()
				s, is := deployed(t, a)
				if err == nil || !strings.Contains(s.Error, "xdp_rejected") || is.Reason != c.reason || len(world.Targets(a)) != c.links || s.Version != next.Serial {
					t.Errorf("%s: %v, %+v", when, err, s)
				}
				if (s.Revision == runs) != c.named || !c.named && s.Revision != "" {
					t.Errorf("%s: runs %q, before %q", when, s.Revision, runs)
				}
			}
			check("at once", w.Accept(a, next))
			stop()
			a, _ = w.Run(world.Named(w))
			check("after a restart", w.Accept(a))
		})
	}
}

func TestAStepThatMovesOnWithTheSameVersionChangesNothingHere(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "ro0", "ro1")
	a := w.StartWith(world.Named(w))
	first := counting(w, "xdp_count", "count_packets")
	if err := w.Accept(a, first); err != nil {
		t.Fatal(err)
	}
	next := world.Over(counting(w, "xdp_count_v2", "count_packets"), &first)
	next.Rollout.Through = intent.NodeHash(next.UID, world.ThisNode)
	if err := w.Accept(a, next); err != nil {
		t.Fatal(err)
	}
	before, _ := deployed(t, a)
	loaded := ids(t, a)
	last := step(w, step(w, next, true), true)
	last.Rollout, last.Previous = nil, nil
	for _, p := range []intent.Payload{step(w, next, true), last} {
		w.Serial++
		p.Serial = w.Serial
		if err := w.Accept(a, p); err != nil {
			t.Fatal(err)
		}
		now, _ := deployed(t, a)
		if now.Serial != p.Serial || ids(t, a) != loaded {
			t.Errorf("serial %d of %d, ids %v, before %v", now.Serial, p.Serial, ids(t, a), loaded)
		}
		// All that is reported stays as it was.
		now.Serial = before.Serial
		if diff := cmp.Diff(before, now); diff != "" {
			t.Errorf("status (-before +now):\n%s", diff)
		}
	}
}

// TestANodeThatMissedAVersionGoesBackToTheOneItsIntentNames: not to what ran
// there last, which may have been revoked meanwhile, and not to nothing.
func TestANodeThatMissedAVersionGoesBackToTheOneItsIntentNames(t *testing.T) {
	need.Kernel(t)
	for sentence, ranBefore := range map[string]bool{"an older one ran": true, "it is new": false} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "ro0", "ro1")
			a, stop := w.Run(world.Named(w))
			if oldest := counting(w, "xdp_count", "count_packets"); ranBefore {
				if err := w.Accept(a, oldest); err != nil {
					t.Fatal(err)
				}
			}
			missed := counting(w, "xdp_count_v2", "count_packets")
			next := world.Over(counting(w, "xdp_rejected", "xdp_rejected"), &missed)
			next.Rollout.Through = intent.NodeHash(next.UID, world.ThisNode)
			o, err := world.Named(w).Trust.Open(w.Seal(next))
			if err != nil {
				t.Fatal(err)
			}
			before, _ := o.Before()
			check := func(when string) {
				t.Helper()
				if s, _ := deployed(t, a); s.Revision != before.Revision() || len(world.Targets(a)) != 1 || s.Version != next.Serial {
					t.Errorf("%s: runs %s, want %s: %+v", when, s.Revision, before.Revision(), s)
				}
			}
			_ = w.Accept(a, next)
			check("at once")
			stop()
			a, _ = w.Run(world.Named(w))
			_ = w.Accept(a)
			check("after a restart")
		})
	}
}

func TestWhatIsBeingFetchedTakesNothingAway(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "ro0", "ro1")
	next, asked, release := counting(w, "xdp_count_v2", "count_packets"), make(chan struct{}), make(chan struct{})
	o := world.Named(w)
	o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
		if digest == next.ObjectDigest {
			close(asked)
			<-release
		}
		return w.Fetch(ctx, digest)
	}
	a := w.StartWith(o)
	first := counting(w, "xdp_count", "count_packets")
	if err := w.Accept(a, first); err != nil {
		t.Fatal(err)
	}
	runs := a.Report()[0].Revision
	w.Serial++
	next.Serial = w.Serial
	if err := a.Accept(w.Seal(next)); err != nil {
		t.Fatal(err)
	}
	<-asked
	a.Reconcile(t.Context())
	if s, _ := deployed(t, a); s.Revision != runs || len(world.Targets(a)) != 1 {
		t.Errorf("while its object is on its way: %+v", s)
	}
	close(release)
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	if s, _ := deployed(t, a); s.Revision == runs || len(world.Targets(a)) != 1 {
		t.Errorf("once it is there: %+v", s)
	}
}

// TestWhatAnIntentDoesNotNameRunsNoMore has a node that cannot have what it is to
// run, beside something that its intent does not name.
func TestWhatAnIntentDoesNotNameRunsNoMore(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		first func(*world.World) intent.Payload
		// next cannot be had.
		next func(*world.World) intent.Payload
	}{
		"a node that is held at what it cannot have": {
			func(w *world.World) intent.Payload { return counting(w, "xdp_count_v2", "count_packets") },
			func(w *world.World) intent.Payload {
				before := counting(w, "xdp_rejected", "xdp_rejected")
				return world.Over(counting(w, "xdp_count", "count_packets"), &before)
			},
		},
		"a version that was never whole there": {
			func(w *world.World) intent.Payload {
				return w.Intent("app", "tracepoint_count", v1alpha1.Program{Name: "tracepoint_count", Attach: []v1alpha1.Attachment{
					{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getpgid"}, {Hook: "tracepoint", Tracepoint: "nope/nope"},
				}})
			},
			func(w *world.World) intent.Payload { return counting(w, "xdp_rejected", "xdp_rejected") },
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "ro0", "ro1")
			a := w.StartWith(world.Named(w))
			_ = w.Accept(a, c.first(w))
			runs := a.Report()[0].Revision
			if len(world.Targets(a)) != 1 {
				t.Fatalf("the first runs at %v", world.Targets(a))
			}
			_ = w.Accept(a, c.next(w))
			if s, _ := deployed(t, a); s.Revision == runs && runs != "" || len(world.Targets(a)) != 0 {
				t.Errorf("it runs on at %v: %+v", world.Targets(a), s)
			}
		})
	}
}

// TestWhereTheVersionBeforeIsRevokedAHeldNodeRunsNothing has a node go on with a
// withdrawn version, since it cannot have the one that it is held at.
func TestWhereTheVersionBeforeIsRevokedAHeldNodeRunsNothing(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "ro0", "ro1")
	a := w.StartWith(world.Named(w))
	withdrawn, before := counting(w, "xdp_count", "count_packets"), counting(w, "xdp_rejected", "xdp_rejected")
	if err := w.Accept(a, withdrawn); err != nil {
		t.Fatal(err)
	}
	next := world.Over(counting(w, "xdp_count_v2", "count_packets"), &before)
	next.Withdrawn = []intent.Payload{withdrawn}
	if err := w.Accept(a, next); err == nil || len(world.Targets(a)) != 1 {
		t.Fatalf("held at what it cannot have: %v, runs at %v", err, world.Targets(a))
	}
	last := step(w, next, false)
	last.Previous = nil
	if err := w.Accept(a, last); err != nil || len(world.Targets(a)) != 0 {
		t.Errorf("held at nothing: %v, runs at %v", err, world.Targets(a))
	}
	if err := w.Accept(a, step(w, last, true)); err != nil || len(world.Targets(a)) != 1 {
		t.Errorf("once the newest has come to it: %v, runs at %v", err, world.Targets(a))
	}
}

// TestAWithdrawnVersionIsLoadedNowhereAnew has the version that took its place out
// of reach: where the withdrawn one runs it goes on, and nowhere else.
func TestAWithdrawnVersionIsLoadedNowhereAnew(t *testing.T) {
	need.Kernel(t)
	for sentence, ran := range map[string]bool{"it runs": true, "nothing runs": false} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "ro0", "ro1")
			withdrawn, good := counting(w, "xdp_count_v2", "count_packets"), counting(w, "xdp_rejected", "xdp_rejected")
			a, stop := w.Run(world.Named(w))
			if ran {
				if err := w.Accept(a, withdrawn); err != nil {
					t.Fatal(err)
				}
			}
			before := world.Targets(a)
			w.Serial++
			good.Serial, good.Withdrawn = w.Serial, []intent.Payload{withdrawn}
			check := func(when string) {
				t.Helper()
				if diff := cmp.Diff(before, world.Targets(a)); diff != "" {
					t.Errorf("%s (-before +now):\n%s", when, diff)
				}
			}
			_ = w.Accept(a, good)
			check("at once")
			stop()
			a, _ = w.Run(world.Named(w))
			_ = w.Accept(a)
			check("after a restart")
		})
	}
}

// TestWhatIsOnItsWayHasNothingElseLoaded has a fetch hang, time after time.
func TestWhatIsOnItsWayHasNothingElseLoaded(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "ro0", "ro1")
	asked := make(chan struct{}, 100)
	before, next := counting(w, "xdp_count", "count_packets"), counting(w, "xdp_count_v2", "count_packets")
	o := world.Named(w)
	o.FetchTimeout = 300 * time.Millisecond
	o.BackOff = agent.BackOff{First: 10 * time.Millisecond, Most: 10 * time.Millisecond}
	o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
		if digest != next.ObjectDigest {
			return w.Fetch(ctx, digest)
		}
		asked <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	a := w.StartWith(o)
	if err := w.Accept(a, before); err != nil {
		t.Fatal(err)
	}
	w.Serial++
	next.Serial = w.Serial
	if err := a.Accept(w.Seal(next)); err != nil {
		t.Fatal(err)
	}
	was, changes := true, 0
	for tries := 0; tries < 6; {
		select {
		case <-asked:
			tries++
		default:
			a.Reconcile(t.Context())
			if now := len(world.Targets(a)) > 0; now != was {
				was, changes = now, changes+1
			}
		}
	}
	if was || changes != 1 {
		t.Errorf("what nothing names runs: %v, after %d changes", was, changes)
	}
}

// TestAVersionBeforeThatCannotBeHadIsNotTriedAllTheTime has neither the newest
// version nor the one before: both back off.
func TestAVersionBeforeThatCannotBeHadIsNotTriedAllTheTime(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "ro0", "ro1")
	missed := counting(w, "xdp_count_v2", "count_packets")
	next := world.Over(counting(w, "xdp_rejected", "xdp_rejected"), &missed)
	next.Rollout.Through = intent.NodeHash(next.UID, world.ThisNode)
	o := world.Named(w)
	o.SweepInterval, o.BackOff = 10*time.Millisecond, agent.BackOff{First: time.Hour, Most: time.Hour}
	var asked atomic.Int32
	o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
		if digest == missed.ObjectDigest {
			asked.Add(1)
			return nil, errors.New("connection refused")
		}
		return w.Fetch(ctx, digest)
	}
	a := w.StartWith(o)
	_ = w.Accept(a, next)
	for range 50 {
		<-a.Reconciled()
	}
	if n := asked.Load(); n > 3 {
		t.Errorf("it is asked for %d times", n)
	}
}

func TestAVersionBeforeThatANodeNeverHadJoinsAChain(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "ro0", "ro1")
	a := w.StartWith(world.Named(w))
	other := w.Intent("other", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "ro0")})
	missed := counting(w, "xdp_count_v2", "count_packets")
	next := world.Over(counting(w, "xdp_rejected", "xdp_rejected"), &missed)
	next.Rollout.Through = intent.NodeHash(next.UID, world.ThisNode)
	_ = w.Accept(a, other, next)
	for _, s := range a.Report() {
		if len(s.Programs) != 1 || len(s.Programs[0].Links) != 1 || s.Programs[0].Links[0].State != agent.Attached {
			t.Errorf("%s: %q, %+v", s.Application, s.Error, s.Programs)
		}
	}
}
