package decide_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/metrics"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/series"
)

// onFallback is a version of an application, which attaches to fb0.
func onFallback(w *world.World, object, function string) intent.Payload {
	return w.Intent("app", object, v1alpha1.Program{Name: function, Attach: world.On("xdp", "fb0")})
}

// TestANodeGoesBackToNoVersionThatIsNotForIt has a version that selects every
// node fail on one of another role than the version before is for.
func TestANodeGoesBackToNoVersionThatIsNotForIt(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		role  string
		links int
	}{
		"it never ran here":       {"core", 0},
		"it is for nodes as this": {"edge", 1},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fb0", "fb1")
			o := world.Named(w)
			o.Labels = map[string]string{"role": c.role}
			a := w.StartWith(o)
			first := onFallback(w, "xdp_count", "count_packets")
			first.NodeSelector = world.Role("edge")
			if err := w.Accept(a, first); err != nil {
				t.Fatal(err)
			}
			if err := w.Accept(a, world.Reached(onFallback(w, "xdp_rejected", "xdp_rejected"), &first)); err == nil {
				t.Fatal("the kernel took it")
			}
			if got := world.Targets(a); len(got) != c.links {
				t.Errorf("runs at %v, want %d", got, c.links)
			}
			// What ran where it was for the node goes once it is not.
			a.Relabel(map[string]string{"role": "core"})
			_ = w.Accept(a)
			if got := world.Targets(a); len(got) != 0 {
				t.Errorf("with other labels it runs at %v", got)
			}
		})
	}
}

// TestWhatRunsStaysWhereItsBytesAreThoseOfAVersionForOthers has an intent name two
// versions of the same bytes, of which the second alone is for this node.
func TestWhatRunsStaysWhereItsBytesAreThoseOfAVersionForOthers(t *testing.T) {
	need.Kernel(t)
	at := func(tracepoint string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: tracepoint}
	}
	for sentence, c := range map[string]struct {
		next func(*world.World) intent.Payload
		want []string
	}{
		"the kernel refuses the newest": {
			func(w *world.World) intent.Payload {
				return w.Intent("hooks", "xdp_rejected", v1alpha1.Program{Name: "xdp_rejected", Attach: world.On("xdp", "fb0")})
			},
			[]string{"syscalls/sys_enter_getpgid"},
		},
		"the newest is attached in part": {
			func(w *world.World) intent.Payload {
				next := world.Version(w, "2", at("syscalls/sys_enter_getsid"))
				next.Programs[0].Attach = append(next.Programs[0].Attach, at("nope/nope"))
				return next
			},
			[]string{"syscalls/sys_enter_getpgid", "syscalls/sys_enter_getsid"},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fb0", "fb1")
			o := world.Named(w)
			o.Labels = map[string]string{"role": "edge"}
			a := w.StartWith(o)
			first := world.Version(w, "1", at("syscalls/sys_enter_getpgid"))
			first.NodeSelector = world.Role("edge")
			if err := w.Accept(a, first); err != nil {
				t.Fatal(err)
			}
			others := first
			w.Serial++
			others.Serial, others.NodeSelector = w.Serial, world.Role("core")
			next := world.Reached(c.next(w), &others)
			next.Withdrawn = []intent.Payload{first}
			if err := w.Accept(a, next); err == nil {
				t.Fatal("it is attached in whole")
			}
			if diff := cmp.Diff(c.want, world.Targets(a)); diff != "" {
				t.Errorf("what runs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestANodeSelectorThatCannotBeReadChangesNothingHere garbles the selector behind
// the seal: Open takes none such.
func TestANodeSelectorThatCannotBeReadChangesNothingHere(t *testing.T) {
	need.Kernel(t)
	for sentence, ran := range map[string]bool{"an older one runs": true, "nothing runs": false} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fb0", "fb1")
			o := world.Named(w)
			o.Labels = map[string]string{"role": "edge"}
			a := w.Idle(o)
			first := onFallback(w, "xdp_count", "count_packets")
			if ran {
				afterATurn(w, a, first)
			}
			before := world.Targets(a)
			next := world.Reached(onFallback(w, "xdp_count_v2", "count_packets"), &first)
			next.NodeSelector = world.Role("core")
			if err := a.Accept(w.Seal(next)); err != nil {
				t.Fatal(err)
			}
			a.Intents()[0].Payload().NodeSelector.MatchLabels[strings.Repeat("a", 300)+"/x"] = "y"
			for range 2 {
				a.Reconcile(t.Context())
				s, c := deployed(t, a)
				if diff := cmp.Diff(before, world.Targets(a)); diff != "" {
					t.Errorf("what runs (-before +now):\n%s", diff)
				}
				if c.Status != metav1.ConditionFalse || !strings.Contains(s.Error, "choose nodes for app") || (s.Revision != "") != ran {
					t.Errorf("it is told as %+v", s)
				}
			}
		})
	}
}

// TestWhatMayRunNoMoreGoesWhereNothingCanBeKept: by an intent that does not name
// what runs, as by a tombstone. One that names it is rejected, and all stays.
func TestWhatMayRunNoMoreGoesWhereNothingCanBeKept(t *testing.T) {
	need.Kernel(t)
	held := func(w *world.World, first *intent.Payload) intent.Payload {
		return world.Over(onFallback(w, "xdp_count_v2", "count_packets"), first)
	}
	unable := func(w *world.World, first *intent.Payload) intent.Payload {
		return world.Reached(onFallback(w, "xdp_rejected", "xdp_rejected"), first)
	}
	for sentence, c := range map[string]struct {
		next   func(*world.World, *intent.Payload) intent.Payload
		named  bool
		rdonly bool
	}{
		"held at what was revoked":              {held, false, false},
		"went on with what was revoked":         {unable, false, false},
		"held, and the disk is read only":       {held, false, true},
		"held at what may run still":            {held, true, false},
		"went on with what may run still":       {unable, true, false},
		"held at it, and the disk is read only": {held, true, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			dir := world.SmallDisk(t, w)
			world.Veth(t, "fb0", "fb1")
			a, stop := w.Run(world.Named(w))
			first := onFallback(w, "xdp_count", "count_packets")
			if err := w.Accept(a, first); err != nil {
				t.Fatal(err)
			}
			next := c.next(w, &first)
			_ = w.Accept(a, next)
			w.Serial++
			last := next
			last.Version, last.Serial = next.Serial, w.Serial
			if links := world.Targets(a); len(links) != 1 {
				t.Fatalf("the first runs at %v", links)
			}
			want := 1
			if !c.named {
				last.Previous, want = nil, 0
			}
			if c.rdonly {
				world.Remount(t, dir, unix.MS_RDONLY)
			} else {
				world.Fill(t, dir)
			}
			if err := a.Accept(w.Seal(last)); (err == nil) != (!c.named && !c.rdonly) {
				t.Errorf("Accept = %v", err)
			}
			_ = w.Accept(a)
			if got := world.Targets(a); len(got) != want {
				t.Errorf("runs at %v, want %d", got, want)
			}
			if c.named {
				return
			}
			// Sent again, it is kept as soon as it can be.
			world.Remount(t, dir, 0)
			if err := a.Accept(w.Seal(last)); err != nil {
				t.Errorf("Accept of the same again = %v", err)
			}
			stop()
			a, _ = w.Run(world.Named(w))
			if all := a.Intents(); len(all) != 1 || all[0].Payload().Serial != last.Serial {
				t.Errorf("after a restart: %+v", all)
			}
			_ = w.Accept(a)
			if got := world.Targets(a); len(got) != 0 {
				t.Errorf("after a restart it runs at %v", got)
			}
		})
	}
}

// TestWhatStandsInGoesWhereItIsNotForTheNodeAnyMore has a version of the same bytes
// elsewhere, for every node.
func TestWhatStandsInGoesWhereItIsNotForTheNodeAnyMore(t *testing.T) {
	need.Kernel(t)
	bind4, _ := hook.Lookup("cgroup/bind4")
	cgroup := world.Target(t, bind4)
	w := world.New(t)
	o := world.Named(w)
	o.Labels = map[string]string{"role": "edge"}
	o.BackOff = agent.BackOff{First: time.Millisecond, Most: time.Millisecond}
	a := w.StartWith(o)
	first := world.Version(w, "1", cgroup)
	first.NodeSelector = world.Role("edge")
	if err := w.Accept(a, first); err != nil {
		t.Fatal(err)
	}
	next := world.Version(w, "1", v1alpha1.Attachment{Hook: "cgroup/bind4", Cgroup: "/skep-test-nowhere"})
	_ = w.Accept(a, world.Reached(next, &first))
	if diff := cmp.Diff([]string{cgroup.Cgroup}, world.Targets(a)); diff != "" {
		t.Fatalf("what runs (-want +got):\n%s", diff)
	}
	a.Relabel(map[string]string{"role": "core"})
	_ = w.Accept(a)
	if got := world.Targets(a); len(got) != 0 {
		t.Errorf("with other labels it runs at %v", got)
	}
}

// TestBytesAtPlacesThatMayBeNoMoreGoWhereNothingCanBeKept has the intent that takes
// what ran from beside the newest version, which has the same bytes, find the disk
// full.
func TestBytesAtPlacesThatMayBeNoMoreGoWhereNothingCanBeKept(t *testing.T) {
	need.Kernel(t)
	bind4, _ := hook.Lookup("cgroup/bind4")
	cgroup := world.Target(t, bind4)
	w := world.New(t)
	dir := world.SmallDisk(t, w)
	a := w.StartWith(world.Named(w))
	first := world.Version(w, "1", cgroup)
	if err := w.Accept(a, first); err != nil {
		t.Fatal(err)
	}
	next := world.Reached(world.Version(w, "1", v1alpha1.Attachment{Hook: "cgroup/bind4", Cgroup: "/skep-test-nowhere"}), &first)
	_ = w.Accept(a, next)
	if diff := cmp.Diff([]string{cgroup.Cgroup}, world.Targets(a)); diff != "" {
		t.Fatalf("what runs (-want +got):\n%s", diff)
	}
	w.Serial++
	last := next
	last.Version, last.Serial, last.Previous = next.Serial, w.Serial, nil
	world.Fill(t, dir)
	if err := a.Accept(w.Seal(last)); err != nil {
		t.Errorf("Accept = %v", err)
	}
	_ = w.Accept(a)
	if got := world.Targets(a); len(got) != 0 {
		t.Errorf("runs at %v", got)
	}
}

// TestWhatCannotTakeTheNewestVersionsPlaceIsToldAndBacksOff has neither the newest
// version nor the one before, and the status says why of both, turn after turn.
func TestWhatCannotTakeTheNewestVersionsPlaceIsToldAndBacksOff(t *testing.T) {
	need.Kernel(t)
	unfit := func(w *world.World) intent.Payload { return w.Intent("app", "raw_tp_count", world.RawProgram()) }
	rejected := func(w *world.World) intent.Payload { return onFallback(w, "xdp_rejected", "xdp_rejected") }
	lost := func(w *world.World) intent.Payload {
		p := onFallback(w, "xdp_count", "count_packets")
		p.ObjectDigest = "sha256:0000"
		return p
	}
	for sentence, c := range map[string]struct {
		next, before func(*world.World) intent.Payload
		unsupported  bool
		says         []string
		// fetches and loads are tried.
		fetches, loads int32
	}{
		"unfit, and the one before cannot be fetched": {
			unfit, lost, true, []string{"no hook raw_tp", "go on with the version before: fetch object of app: no object"}, 1, 0,
		},
		"unfit, and the verifier refuses the other": {unfit, rejected, true, []string{"no hook raw_tp", "go on with the version before: load app"}, 1, 1},
		"refused, and the one before cannot be loaded": {
			rejected, lost, false, []string{"load app", "go on with the version before: fetch object of app: no object"}, 2, 1,
		},
		"refused, and the one before is unfit": {
			rejected, unfit, false, []string{"load app", "go on with the version before: kernel 6.1.0 has no hook raw_tp"}, 1, 1,
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fb0", "fb1")
			var fetches atomic.Int32
			registry, o := prometheus.NewRegistry(), world.Named(w)
			o.Observer, o.BackOff = metrics.New(registry), agent.BackOff{First: time.Hour, Most: time.Hour}
			o.Profile = &v1alpha1.KernelProfile{Release: "6.1.0", Hooks: []string{"xdp"}, ProgramTypes: []string{"XDP"}}
			o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
				fetches.Add(1)
				return w.Fetch(ctx, digest)
			}
			a := w.Idle(o)
			before := c.before(w)
			if err := a.Accept(w.Seal(world.Reached(c.next(w), &before))); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				a.Reconcile(t.Context())
				s, _ := deployed(t, a)
				for _, want := range c.says {
					if !strings.Contains(s.Error, want) {
						t.Fatalf("it says %q, and not %q", s.Error, want)
					}
				}
				if s.Unsupported != c.unsupported || s.Revision != "" {
					t.Fatalf("it is told as %+v", s)
				}
			}
			if n := fetches.Load(); n != c.fetches {
				t.Errorf("fetched %d times, want %d", n, c.fetches)
			}
			if n := series.Of(t, registry)[`skep_agent_load_duration_seconds{result="failed",what="revision"}`]; n != float64(c.loads) {
				t.Errorf("loaded %v times, want %d", n, c.loads)
			}
		})
	}
}

// TestNothingUnnamedRunsOnWhereNeitherVersionFitsAChain has the kernel reject the
// newest version, and a neighbour's licence the one before.
func TestNothingUnnamedRunsOnWhereNeitherVersionFitsAChain(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		before func(w *world.World, first intent.Payload) intent.Payload
		links  int
	}{
		"what runs is named nowhere": {func(w *world.World, _ intent.Payload) intent.Payload {
			return onFallback(w, "xdp_proprietary", "xdp_proprietary")
		}, 0},
		"what runs is the version before": {func(_ *world.World, first intent.Payload) intent.Payload { return first }, 1},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fb0", "fb1")
			a := w.StartWith(world.Named(w))
			first := onFallback(w, "xdp_count", "count_packets")
			neighbour := w.Intent("neighbour", "xdp_gpl", v1alpha1.Program{Name: "xdp_gpl", Attach: world.On("xdp", "fb0")})
			if err := w.Accept(a, first, neighbour); err != nil {
				t.Fatal(err)
			}
			before := c.before(w, first)
			if err := w.Accept(a, world.Reached(onFallback(w, "xdp_rejected", "xdp_rejected"), &before)); err == nil {
				t.Fatal("the kernel took it")
			}
			for name, want := range map[string]int{"app": c.links, "neighbour": 1} {
				if s := world.StatusOf(a, name); len(s.Programs) != want {
					t.Errorf("%s is told as %+v", name, s)
				}
			}
			if s := world.StatusOf(a, "app"); c.links == 0 && !strings.Contains(s.Error, "licence") {
				t.Errorf("it says %q", s.Error)
			}
		})
	}
}

// TestNothingUnnamedRunsOnByTheNewestVersionsBytes has a version of the same bytes
// elsewhere, where a neighbour's licence keeps it out.
func TestNothingUnnamedRunsOnByTheNewestVersionsBytes(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		// named: by the intent.
		named bool
		links int
	}{
		"what ran is named nowhere":      {false, 0},
		"what ran is the version before": {true, 1},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fb0", "fb1")
			world.Veth(t, "fb2", "fb3")
			a := w.StartWith(world.Named(w))
			neighbour := w.Intent("neighbour", "xdp_gpl", v1alpha1.Program{Name: "xdp_gpl", Attach: world.On("xdp", "fb2")})
			first := onFallback(w, "xdp_proprietary", "xdp_proprietary")
			if err := w.Accept(a, first, neighbour); err != nil {
				t.Fatal(err)
			}
			next := world.Reached(onFallback(w, "xdp_proprietary", "xdp_proprietary"), &first)
			next.Programs[0].Attach = world.On("xdp", "fb2")
			if !c.named {
				next.Previous = nil
			}
			if err := w.Accept(a, next); err == nil {
				t.Fatal("the chain took it")
			}
			var links []agent.LinkStatus
			for _, p := range world.StatusOf(a, "app").Programs {
				links = append(links, p.Links...)
			}
			if len(links) != c.links || c.links > 0 && links[0].Target != "fb0" {
				t.Errorf("it runs at %+v", links)
			}
		})
	}
}

// TestWhatStandsInStaysOnANodeThatIsHeldAtWhatItCannotHave has the next version on
// its way to others, while this node has the one before in part.
func TestWhatStandsInStaysOnANodeThatIsHeldAtWhatItCannotHave(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		// named: what stands in, by the intent.
		named bool
		want  []string
	}{
		"what stands in may run still":  {true, []string{"syscalls/sys_enter_getpgid", "syscalls/sys_enter_getsid"}},
		"what stood in may run no more": {false, []string{"syscalls/sys_enter_getsid"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			o := world.Named(w)
			o.BackOff = agent.BackOff{First: time.Millisecond, Most: time.Millisecond}
			a, stop := w.Run(o)
			at := func(tracepoint string) v1alpha1.Attachment {
				return v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: tracepoint}
			}
			first := world.Version(w, "1", at("syscalls/sys_enter_getpgid"))
			if err := w.Accept(a, first); err != nil {
				t.Fatal(err)
			}
			second := world.Version(w, "2", at("syscalls/sys_enter_getsid"))
			second.Programs[0].Attach = append(second.Programs[0].Attach, at("nope/nope"))
			if err := w.Accept(a, world.Reached(second, &first)); err == nil {
				t.Fatal("it is attached in whole")
			}
			third := world.Over(world.Version(w, "3", at("syscalls/sys_enter_getsid")), &second)
			if c.named {
				third.Withdrawn = []intent.Payload{first}
			}
			check := func(when string, a *agent.Agent) {
				t.Helper()
				for range 3 {
					<-a.Reconciled()
				}
				if diff := cmp.Diff(c.want, world.Targets(a)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", when, diff)
				}
				if s, is := deployed(t, a); !s.Held || s.Version != second.Serial || is.Reason != "Failed" {
					t.Errorf("%s: it is told as %+v", when, s)
				}
			}
			_ = w.Accept(a, third)
			check("at once", a)
			stop()
			a, _ = w.Run(o)
			_ = w.Accept(a)
			check("after a restart", a)
		})
	}
}

// TestWhatRanStaysUntilTheNewVersionIsAttachedInWhole has the new version fail at a
// hook that is not the one of the version before.
func TestWhatRanStaysUntilTheNewVersionIsAttachedInWhole(t *testing.T) {
	need.Kernel(t)
	const late = "/skep-test-fallback"
	tracepoint := v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getpgid"}
	bind4, _ := hook.Lookup("cgroup/bind4")
	cgroup := world.Target(t, bind4)
	for sentence, c := range map[string]struct {
		first  v1alpha1.Attachment
		next   []v1alpha1.Attachment
		number string
		// named: by the intent. kept: nothing of the new version runs.
		named, kept bool
		want        []string
	}{
		"the kernel has no such tracepoint": {tracepoint, []v1alpha1.Attachment{{Hook: "tracepoint", Tracepoint: "nope/nope"}}, "2", true, true,
			[]string{tracepoint.Tracepoint}},
		"a part of it runs": {tracepoint, []v1alpha1.Attachment{
			{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getsid"}, {Hook: "tracepoint", Tracepoint: "nope/nope"},
		}, "2", true, false,
			[]string{tracepoint.Tracepoint, "syscalls/sys_enter_getsid"}},
		"a cgroup is not there": {tracepoint, []v1alpha1.Attachment{{Hook: "cgroup/bind4", Cgroup: late}}, "2", true, true,
			[]string{tracepoint.Tracepoint}},
		"only its places differ": {cgroup, []v1alpha1.Attachment{{Hook: "cgroup/bind4", Cgroup: late}}, "1", true, false,
			[]string{cgroup.Cgroup}},
		"only its places differ, and what ran may run no more": {cgroup, []v1alpha1.Attachment{{Hook: "cgroup/bind4", Cgroup: late}}, "1", false, false, nil},
		"what ran may run no more": {
			tracepoint, []v1alpha1.Attachment{{Hook: "tracepoint", Tracepoint: "nope/nope"}}, "2", false, false, nil,
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			o := world.Named(w)
			o.BackOff = agent.BackOff{First: time.Millisecond, Most: time.Millisecond}
			a := w.StartWith(o)
			first := world.Version(w, "1", c.first)
			if err := w.Accept(a, first); err != nil {
				t.Fatal(err)
			}
			next := world.Version(w, c.number, c.next[0])
			next.Programs[0].Attach = c.next
			next = world.Reached(next, &first)
			if !c.named {
				next.Previous = nil
			}
			if err := w.Accept(a, next); err == nil {
				t.Fatal("it is attached in whole")
			}
			for range 3 {
				<-a.Reconciled()
			}
			if s, is := deployed(t, a); c.kept != (is.Reason == "KeptPrevious") || !c.kept && s.Revision != s.Wanted {
				t.Errorf("it is told as %+v", s)
			}
			if diff := cmp.Diff(c.want, world.Targets(a)); diff != "" {
				t.Errorf("what runs (-want +got):\n%s", diff)
			}
			// It goes once the new version is whole.
			w.Serial++
			whole := next.Alone()
			whole.Serial, whole.Programs = w.Serial, world.Version(w, "2", v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getsid"}).Programs
			if err := w.Accept(a, whole); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"syscalls/sys_enter_getsid"}, world.Targets(a)); diff != "" {
				t.Errorf("in the end (-want +got):\n%s", diff)
			}
		})
	}
}
