package agent_test

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
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/series"
)

// onFallback is a version of an application, which attaches to fb0.
func (w *world) onFallback(object, function string) intent.Payload {
	return w.intent("app", object, v1alpha1.Program{Name: function, Attach: on("xdp", "fb0")})
}

// reached makes a version one that has come to this node, over the version
// before.
func reached(p intent.Payload, before *intent.Payload) intent.Payload {
	p = over(p, before)
	p.Rollout.Through = intent.NodeHash(p.UID, thisNode)
	return p
}

// idle makes an agent whose turns the test makes.
func (w *world) idle(o agent.Options) *agent.Agent {
	w.t.Helper()
	a, err := agent.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := a.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return a
}

// role selects the nodes of a role.
func role(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"role": name}}
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
			w := newWorld(t)
			veth(t, "fb0", "fb1")
			o := w.named()
			o.Labels = map[string]string{"role": c.role}
			a := w.startWith(o)
			first := w.onFallback("xdp_count", "count_packets")
			first.NodeSelector = role("edge")
			if err := w.accept(a, first); err != nil {
				t.Fatal(err)
			}
			if err := w.accept(a, reached(w.onFallback("xdp_rejected", "xdp_rejected"), &first)); err == nil {
				t.Fatal("the kernel took it")
			}
			if got := targets(a); len(got) != c.links {
				t.Errorf("runs at %v, want %d", got, c.links)
			}
			// What ran where it was for the node goes once it is not.
			a.Relabel(map[string]string{"role": "core"})
			_ = w.accept(a)
			if got := targets(a); len(got) != 0 {
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
		next func(*world) intent.Payload
		want []string
	}{
		"the kernel refuses the newest": {
			func(w *world) intent.Payload {
				return w.intent("hooks", "xdp_rejected", v1alpha1.Program{Name: "xdp_rejected", Attach: on("xdp", "fb0")})
			},
			[]string{"syscalls/sys_enter_getpgid"},
		},
		"the newest is attached in part": {
			func(w *world) intent.Payload {
				next := w.version("2", at("syscalls/sys_enter_getsid"))
				next.Programs[0].Attach = append(next.Programs[0].Attach, at("nope/nope"))
				return next
			},
			[]string{"syscalls/sys_enter_getpgid", "syscalls/sys_enter_getsid"},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			veth(t, "fb0", "fb1")
			o := w.named()
			o.Labels = map[string]string{"role": "edge"}
			a := w.startWith(o)
			first := w.version("1", at("syscalls/sys_enter_getpgid"))
			first.NodeSelector = role("edge")
			if err := w.accept(a, first); err != nil {
				t.Fatal(err)
			}
			others := first
			w.serial++
			others.Serial, others.NodeSelector = w.serial, role("core")
			next := reached(c.next(w), &others)
			next.Withdrawn = []intent.Payload{first}
			if err := w.accept(a, next); err == nil {
				t.Fatal("it is attached in whole")
			}
			if diff := cmp.Diff(c.want, targets(a)); diff != "" {
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
			w := newWorld(t)
			veth(t, "fb0", "fb1")
			o := w.named()
			o.Labels = map[string]string{"role": "edge"}
			a := w.idle(o)
			first := w.onFallback("xdp_count", "count_packets")
			if ran {
				w.turns(a, first)
			}
			before := targets(a)
			next := reached(w.onFallback("xdp_count_v2", "count_packets"), &first)
			next.NodeSelector = role("core")
			if err := a.Accept(w.seal(next)); err != nil {
				t.Fatal(err)
			}
			a.Intents()[0].Payload().NodeSelector.MatchLabels[strings.Repeat("a", 300)+"/x"] = "y"
			for range 2 {
				a.Reconcile(t.Context())
				s, c := deployed(t, a)
				if diff := cmp.Diff(before, targets(a)); diff != "" {
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
	held := func(w *world, first *intent.Payload) intent.Payload {
		return over(w.onFallback("xdp_count_v2", "count_packets"), first)
	}
	unable := func(w *world, first *intent.Payload) intent.Payload {
		return reached(w.onFallback("xdp_rejected", "xdp_rejected"), first)
	}
	for sentence, c := range map[string]struct {
		next   func(*world, *intent.Payload) intent.Payload
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
			w := newWorld(t)
			dir := smallDisk(t, w)
			veth(t, "fb0", "fb1")
			a, stop := w.run(w.named())
			first := w.onFallback("xdp_count", "count_packets")
			if err := w.accept(a, first); err != nil {
				t.Fatal(err)
			}
			next := c.next(w, &first)
			_ = w.accept(a, next)
			w.serial++
			last := next
			last.Version, last.Serial = next.Serial, w.serial
			if links := targets(a); len(links) != 1 {
				t.Fatalf("the first runs at %v", links)
			}
			want := 1
			if !c.named {
				last.Previous, want = nil, 0
			}
			if c.rdonly {
				remount(t, dir, unix.MS_RDONLY)
			} else {
				fill(t, dir)
			}
			if err := a.Accept(w.seal(last)); (err == nil) != (!c.named && !c.rdonly) {
				t.Errorf("Accept = %v", err)
			}
			_ = w.accept(a)
			if got := targets(a); len(got) != want {
				t.Errorf("runs at %v, want %d", got, want)
			}
			if c.named {
				return
			}
			// Sent again, it is kept as soon as it can be.
			remount(t, dir, 0)
			if err := a.Accept(w.seal(last)); err != nil {
				t.Errorf("Accept of the same again = %v", err)
			}
			stop()
			a, _ = w.run(w.named())
			if all := a.Intents(); len(all) != 1 || all[0].Payload().Serial != last.Serial {
				t.Errorf("after a restart: %+v", all)
			}
			_ = w.accept(a)
			if got := targets(a); len(got) != 0 {
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
	cgroup := target(t, bind4)
	w := newWorld(t)
	o := w.named()
	o.Labels = map[string]string{"role": "edge"}
	o.BackOff = agent.BackOff{First: time.Millisecond, Most: time.Millisecond}
	a := w.startWith(o)
	first := w.version("1", cgroup)
	first.NodeSelector = role("edge")
	if err := w.accept(a, first); err != nil {
		t.Fatal(err)
	}
	next := w.version("1", v1alpha1.Attachment{Hook: "cgroup/bind4", Cgroup: "/skep-test-nowhere"})
	_ = w.accept(a, reached(next, &first))
	if diff := cmp.Diff([]string{cgroup.Cgroup}, targets(a)); diff != "" {
		t.Fatalf("what runs (-want +got):\n%s", diff)
	}
	a.Relabel(map[string]string{"role": "core"})
	_ = w.accept(a)
	if got := targets(a); len(got) != 0 {
		t.Errorf("with other labels it runs at %v", got)
	}
}

// TestBytesAtPlacesThatMayBeNoMoreGoWhereNothingCanBeKept has the intent that takes
// what ran from beside the newest version, which has the same bytes, find the disk
// full.
func TestBytesAtPlacesThatMayBeNoMoreGoWhereNothingCanBeKept(t *testing.T) {
	need.Kernel(t)
	bind4, _ := hook.Lookup("cgroup/bind4")
	cgroup := target(t, bind4)
	w := newWorld(t)
	dir := smallDisk(t, w)
	a := w.startWith(w.named())
	first := w.version("1", cgroup)
	if err := w.accept(a, first); err != nil {
		t.Fatal(err)
	}
	next := reached(w.version("1", v1alpha1.Attachment{Hook: "cgroup/bind4", Cgroup: "/skep-test-nowhere"}), &first)
	_ = w.accept(a, next)
	if diff := cmp.Diff([]string{cgroup.Cgroup}, targets(a)); diff != "" {
		t.Fatalf("what runs (-want +got):\n%s", diff)
	}
	w.serial++
	last := next
	last.Version, last.Serial, last.Previous = next.Serial, w.serial, nil
	fill(t, dir)
	if err := a.Accept(w.seal(last)); err != nil {
		t.Errorf("Accept = %v", err)
	}
	_ = w.accept(a)
	if got := targets(a); len(got) != 0 {
		t.Errorf("runs at %v", got)
	}
}

// TestWhatCannotTakeTheNewestVersionsPlaceIsToldAndBacksOff has neither the newest
// version nor the one before, and the status says why of both, turn after turn.
func TestWhatCannotTakeTheNewestVersionsPlaceIsToldAndBacksOff(t *testing.T) {
	need.Kernel(t)
	unfit := func(w *world) intent.Payload { return w.intent("app", "raw_tp_count", rawProgram()) }
	rejected := func(w *world) intent.Payload { return w.onFallback("xdp_rejected", "xdp_rejected") }
	lost := func(w *world) intent.Payload {
		p := w.onFallback("xdp_count", "count_packets")
		p.ObjectDigest = "sha256:0000"
		return p
	}
	for sentence, c := range map[string]struct {
		next, before func(*world) intent.Payload
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
			w := newWorld(t)
			veth(t, "fb0", "fb1")
			var fetches atomic.Int32
			registry, o := prometheus.NewRegistry(), w.named()
			o.Observer, o.BackOff = metrics.New(registry), agent.BackOff{First: time.Hour, Most: time.Hour}
			o.Profile = &v1alpha1.KernelProfile{Release: "6.1.0", Hooks: []string{"xdp"}, ProgramTypes: []string{"XDP"}}
			o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
				fetches.Add(1)
				return w.fetch(ctx, digest)
			}
			a := w.idle(o)
			before := c.before(w)
			if err := a.Accept(w.seal(reached(c.next(w), &before))); err != nil {
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
		before func(w *world, first intent.Payload) intent.Payload
		links  int
	}{
		"what runs is named nowhere": {func(w *world, _ intent.Payload) intent.Payload {
			return w.onFallback("xdp_proprietary", "xdp_proprietary")
		}, 0},
		"what runs is the version before": {func(_ *world, first intent.Payload) intent.Payload { return first }, 1},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			veth(t, "fb0", "fb1")
			a := w.startWith(w.named())
			first := w.onFallback("xdp_count", "count_packets")
			neighbour := w.intent("neighbour", "xdp_gpl", v1alpha1.Program{Name: "xdp_gpl", Attach: on("xdp", "fb0")})
			if err := w.accept(a, first, neighbour); err != nil {
				t.Fatal(err)
			}
			before := c.before(w, first)
			if err := w.accept(a, reached(w.onFallback("xdp_rejected", "xdp_rejected"), &before)); err == nil {
				t.Fatal("the kernel took it")
			}
			for name, want := range map[string]int{"app": c.links, "neighbour": 1} {
				if s := statusOf(a, name); len(s.Programs) != want {
					t.Errorf("%s is told as %+v", name, s)
				}
			}
			if s := statusOf(a, "app"); c.links == 0 && !strings.Contains(s.Error, "licence") {
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
			w := newWorld(t)
			veth(t, "fb0", "fb1")
			veth(t, "fb2", "fb3")
			a := w.startWith(w.named())
			neighbour := w.intent("neighbour", "xdp_gpl", v1alpha1.Program{Name: "xdp_gpl", Attach: on("xdp", "fb2")})
			first := w.onFallback("xdp_proprietary", "xdp_proprietary")
			if err := w.accept(a, first, neighbour); err != nil {
				t.Fatal(err)
			}
			next := reached(w.onFallback("xdp_proprietary", "xdp_proprietary"), &first)
			next.Programs[0].Attach = on("xdp", "fb2")
			if !c.named {
				next.Previous = nil
			}
			if err := w.accept(a, next); err == nil {
				t.Fatal("the chain took it")
			}
			var links []agent.LinkStatus
			for _, p := range statusOf(a, "app").Programs {
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
			w := newWorld(t)
			o := w.named()
			o.BackOff = agent.BackOff{First: time.Millisecond, Most: time.Millisecond}
			a, stop := w.run(o)
			at := func(tracepoint string) v1alpha1.Attachment {
				return v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: tracepoint}
			}
			first := w.version("1", at("syscalls/sys_enter_getpgid"))
			if err := w.accept(a, first); err != nil {
				t.Fatal(err)
			}
			second := w.version("2", at("syscalls/sys_enter_getsid"))
			second.Programs[0].Attach = append(second.Programs[0].Attach, at("nope/nope"))
			if err := w.accept(a, reached(second, &first)); err == nil {
				t.Fatal("it is attached in whole")
			}
			third := over(w.version("3", at("syscalls/sys_enter_getsid")), &second)
			if c.named {
				third.Withdrawn = []intent.Payload{first}
			}
			check := func(when string, a *agent.Agent) {
				t.Helper()
				for range 3 {
					<-a.Reconciled()
				}
				if diff := cmp.Diff(c.want, targets(a)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", when, diff)
				}
				if s, is := deployed(t, a); !s.Held || s.Version != second.Serial || is.Reason != "Failed" {
					t.Errorf("%s: it is told as %+v", when, s)
				}
			}
			_ = w.accept(a, third)
			check("at once", a)
			stop()
			a, _ = w.run(o)
			_ = w.accept(a)
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
	cgroup := target(t, bind4)
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
			w := newWorld(t)
			o := w.named()
			o.BackOff = agent.BackOff{First: time.Millisecond, Most: time.Millisecond}
			a := w.startWith(o)
			first := w.version("1", c.first)
			if err := w.accept(a, first); err != nil {
				t.Fatal(err)
			}
			next := w.version(c.number, c.next[0])
			next.Programs[0].Attach = c.next
			next = reached(next, &first)
			if !c.named {
				next.Previous = nil
			}
			if err := w.accept(a, next); err == nil {
				t.Fatal("it is attached in whole")
			}
			for range 3 {
				<-a.Reconciled()
			}
			if s, is := deployed(t, a); c.kept != (is.Reason == "KeptPrevious") || !c.kept && s.Revision != s.Wanted {
				t.Errorf("it is told as %+v", s)
			}
			if diff := cmp.Diff(c.want, targets(a)); diff != "" {
				t.Errorf("what runs (-want +got):\n%s", diff)
			}
			// It goes once the new version is whole.
			w.serial++
			whole := next.Alone()
			whole.Serial, whole.Programs = w.serial, w.version("2", v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getsid"}).Programs
			if err := w.accept(a, whole); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"syscalls/sys_enter_getsid"}, targets(a)); diff != "" {
				t.Errorf("in the end (-want +got):\n%s", diff)
			}
		})
	}
}
