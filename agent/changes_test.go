package agent_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// onTurns makes an agent on a runtime that works by the test's calls alone.
func onTurns(w *world.World, r *world.Runtime, change func(*agent.Options)) *agent.Agent {
	w.T.Helper()
	o := w.Options()
	o.Containers = r.Source
	change(&o)
	a, err := agent.New(o)
	if err != nil {
		w.T.Fatal(err)
	}
	a.HintsAtOnce()
	w.T.Cleanup(func() { _ = a.Close() })
	return a
}

// rests does what the agent was woken for, until nothing is left and every link that was to end
// has ended.
func rests(t *testing.T, a *agent.Agent) {
	t.Helper()
	for woken := true; woken; woken = a.ReconcileIfWoken(t.Context()) {
		for a.ReconcileIfWoken(t.Context()) {
			continue
		}
		reconciledBySweeps(t, a)
		a.AwaitClosings()
	}
}

func reconciledBySweeps(t *testing.T, a *agent.Agent) {
	t.Helper()
	world.Until(t, "sweeps to leave nothing to do", time.Minute, func() bool { return !a.Sweep(t.Context()) })
}

// inCgroups is an attachment to the cgroups of pods.
func inCgroups(pods v1alpha1.Pods) v1alpha1.Attachment {
	return v1alpha1.Attachment{Hook: "cgroup_skb/egress", Pods: &pods}
}

// TestAPodThatNobodyChoosesCausesNoReconcile starts and ends pods with an application of a
// namespace and one of the cluster.
func TestAPodThatNobodyChoosesCausesNoReconcile(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), world.NewRuntime(t)
	var tier atomic.Value
	tier.Store("free")
	a := onTurns(w, r, func(o *agent.Options) {
		o.NamespaceLabels = func(name string) (map[string]string, bool, bool) {
			return map[string]string{"tier": tier.Load().(string)}, name != "unknown", true
		}
	})
	front := metav1.LabelSelector{MatchLabels: map[string]string{"app": "front"}}
	team := world.OfTeam(w, "team-a", "cgroup_skb", "cgroup_egress", inCgroups(v1alpha1.Pods{Selector: &front}))
	paid := metav1.LabelSelector{MatchLabels: map[string]string{"tier": "paid"}}
	cluster := world.OfTeam(w, "", "cgroup_skb", "cgroup_egress", inCgroups(v1alpha1.Pods{Selector: &front, NamespaceSelector: &paid}))
	cluster.UID, cluster.Application.Kind = "uid-cluster", v1alpha1.KindClusterBpfApplication
	w.Give(a, team, cluster)
	rests(t, a)

	for _, c := range []struct {
		namespace string
		labels    map[string]string
		chosen    bool
	}{
		{"team-a", map[string]string{"app": "front"}, true},
		{"team-a", map[string]string{"app": "back"}, false},
		{"team-a", nil, false},
		{"team-b", map[string]string{"app": "front"}, false},
		{"team-b", nil, false},
		{"unknown", map[string]string{"app": "back"}, false},
	} {
		pod := r.Start(c.namespace, "web", "app", c.labels)
		if woken := a.ReconcileIfWoken(t.Context()); woken != c.chosen {
			t.Errorf("a pod of %s with labels %v causes a reconcile: %v, want %v", c.namespace, c.labels, woken, c.chosen)
		}
		if got := world.LinkPins(w, team.UID); (got == 1) != c.chosen {
			t.Errorf("after the start of a pod of %s with labels %v: %d links, want one: %v", c.namespace, c.labels, got, c.chosen)
		}
		rests(t, a)
		pod.Ends()
		if woken := a.ReconcileIfWoken(t.Context()); woken != c.chosen {
			t.Errorf("the end of a pod of %s with labels %v causes a reconcile: %v, want %v", c.namespace, c.labels, woken, c.chosen)
		}
		if got := world.LinkPins(w, team.UID); got != 0 {
			t.Errorf("after the end of a pod of %s with labels %v: %d links, want none", c.namespace, c.labels, got)
		}
		rests(t, a)
	}

	// A namespace gets a label that an application chooses.
	r.Start("team-b", "web", "app", map[string]string{"app": "front"})
	if a.ReconcileIfWoken(t.Context()); world.LinkPins(w, cluster.UID) != 0 {
		t.Error("a pod is chosen whose namespace has another label")
	}
	tier.Store("paid")
	a.Wake()
	rests(t, a)
	if got := world.LinkPins(w, cluster.UID); got != 1 {
		t.Errorf("after the label of the namespace changed: %d links, want 1", got)
	}

	// The choice of an application changes.
	changed := team
	changed.Serial++
	changed.Programs = []v1alpha1.Program{{Name: "cgroup_egress", Attach: []v1alpha1.Attachment{inCgroups(v1alpha1.Pods{})}}}
	w.Give(a, changed)
	rests(t, a)
	r.Start("team-a", "back", "app", map[string]string{"app": "back"})
	if !a.ReconcileIfWoken(t.Context()) || world.LinkPins(w, team.UID) != 1 {
		t.Errorf("a pod that the changed application chooses: %d links, want 1", world.LinkPins(w, team.UID))
	}
}

// linkPin is the pin of an application's only link.
func linkPin(w *world.World, uid string) string {
	w.T.Helper()
	pins, err := filepath.Glob(filepath.Join(w.BPFFS, uid, "+links", "*"))
	pins = slices.DeleteFunc(pins, func(pin string) bool { return strings.Contains(filepath.Base(pin), "+") })
	if err != nil || len(pins) != 1 {
		w.T.Fatalf("pins %v, %v", pins, err)
	}
	return pins[0]
}

// TestChangesOfPodsPutOffNoFullReconcile: what is wrong with a pin, and a container of which nobody
// told, are found after 30 seconds, whatever else happens and however often the agent sweeps.
func TestChangesOfPodsPutOffNoFullReconcile(t *testing.T) {
	need.Kernel(t)
	w, r, now := world.New(t), world.NewRuntime(t), world.NewClock()
	a := onTurns(w, r, func(o *agent.Options) { o.Clock = now.Now })
	chosen := r.Start("team-a", "web", "app", nil)
	p := world.OfTeam(w, "team-a", "cgroup_skb", "cgroup_egress", inCgroups(v1alpha1.Pods{}))
	w.Give(a, p)
	rests(t, a)
	a.Reconcile(t.Context())

	pin := linkPin(w, p.UID)
	world.Must(t, os.Remove(pin))
	unheard := chosen.Container
	r.Mu.Lock()
	r.All["unheard"] = unheard
	r.Mu.Unlock()
	isThere := func() bool { _, err := os.Lstat(pin); return err == nil }
	live := func(passed time.Duration) {
		t.Helper()
		now.Forward(passed)
		r.Wake(chosen.Pod)
		if !a.ReconcileIfWoken(t.Context()) {
			t.Fatal("the change of a chosen pod causes no reconcile")
		}
		a.Sweep(t.Context())
	}
	for range 35 {
		live(0)
	}
	if live(29 * time.Second); isThere() {
		t.Error("the pin is back after 29 seconds, by an incremental reconcile")
	}
	if live(time.Second); !isThere() {
		t.Error("a sweep after 30 seconds found no pin missing")
	}
}

// TestChangesOfPodsDelayNoLoad: a load that ends while a reconcile looks at pods would wait for that. Neither do loads delay changes for long.
func TestChangesOfPodsDelayNoLoad(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), world.NewRuntime(t)
	a := onTurns(w, r, func(*agent.Options) {})
	pod := r.Start("team-a", "web", "app", nil)
	first := world.OfTeam(w, "team-a", "cgroup_skb", "cgroup_egress", inCgroups(v1alpha1.Pods{}))
	w.Give(a, first)
	rests(t, a)

	next := first
	next.UID, next.Application.Name = "uid-next", "next"
	let := a.HoldLoads(next.UID)
	defer let()
	looks := 0
	a.OnLook(func() { looks++; r.Wake(pod.Pod) })
	w.Give(a, next)
	a.HintsAwaitLoads(time.Hour)
	if a.Reconcile(t.Context()); looks != 1 {
		t.Errorf("%d looks while a load is on its way, want one", looks)
	}
	a.HintsAwaitLoads(0)
	world.Until(t, "a change of a pod to be followed next to a load", time.Minute, func() bool {
		looks = 0
		a.Reconcile(t.Context())
		return looks > 1
	})
	a.OnLook(func() {})
	let()
	world.Until(t, "the load to be attached", time.Minute, func() bool { a.Reconcile(t.Context()); return world.LinkPins(w, next.UID) == 1 })
}

// TestSweepsNextToALoadFollowChanges: a load, or a server of objects, that takes long has nothing else read anew each second.
func TestSweepsNextToALoadFollowChanges(t *testing.T) {
	need.Kernel(t)
	w, r, now := world.New(t), world.NewRuntime(t), world.NewClock()
	a := onTurns(w, r, func(o *agent.Options) { o.Clock = now.Now })
	r.Start("team-a", "web", "app", nil)
	first := world.OfTeam(w, "team-a", "cgroup_skb", "cgroup_egress", inCgroups(v1alpha1.Pods{}))
	w.Give(a, first)
	rests(t, a)
	a.Reconcile(t.Context())

	next := first
	next.UID, next.Application.Name = "uid-next", "next"
	let := a.HoldLoads(next.UID)
	defer let()
	if w.Give(a, next); !a.ReconcileIfWoken(t.Context()) {
		t.Fatal("an intent causes no reconcile")
	}
	// Only a full reconcile finds that, since no event reports it.
	world.Must(t, os.Remove(linkPin(w, first.UID)))
	if !a.Sweep(t.Context()) || world.LinkPins(w, first.UID) != 0 {
		t.Error("a sweep next to a load takes no reconcile, or a full one")
	}
	if now.Forward(30 * time.Second); !a.Sweep(t.Context()) || world.LinkPins(w, first.UID) != 1 {
		t.Error("a sweep after 30 seconds takes no full reconcile")
	}
}

// TestAPodWhoseFilesChangeIsLookedAtAgain: a reconcile that follows changes finds the file of a
// container that came late, and takes that of others as it was.
func TestAPodWhoseFilesChangeIsLookedAtAgain(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), world.NewRuntime(t)
	a := onTurns(w, r, func(*agent.Options) {})
	p := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
	first := r.Start("team-a", "web", "app", nil)
	w.Give(a, p)
	rests(t, a)
	first.Runs("app")
	if got := world.Counted(w, p.UID); got != world.Worked || world.LinkPins(w, p.UID) != 1 {
		t.Fatalf("counted %d by %d links, want %d by one", got, world.LinkPins(w, p.UID), world.Worked)
	}
	// Another file in the place of the image's: of this container alone.
	late := r.Start("team-a", "late", "app", nil)
	path := filepath.Join(late.Files, "app")
	body, err := os.ReadFile(path)
	world.Must(t, err)
	world.Must(t, os.Remove(path))
	for a.ReconcileIfWoken(t.Context()) {
		continue
	}
	if got := world.LinkPins(w, p.UID); got != 1 {
		t.Errorf("%d links while a container has no such file, want 1", got)
	}
	world.Must(t, os.WriteFile(path, body, 0o755))
	r.Wake(late.Pod)
	rests(t, a)
	if got := world.LinkPins(w, p.UID); got != 2 {
		t.Errorf("%d links with a container that has a file of its own, want 2", got)
	}
	before := world.Counted(w, p.UID)
	late.Runs("app")
	first.Runs("app")
	if got := world.Counted(w, p.UID) - before; got != 2*world.Worked {
		t.Errorf("counted %d of both containers, want %d", got, 2*world.Worked)
	}
	// The same container again, of another process.
	r.Tell(func() {
		one := r.All[late.ID]
		one.Process = r.See(os.Getpid())
		r.All[late.ID] = one
	}, containers.Pod{Namespace: "team-a", SandboxID: late.ID})
	rests(t, a)
	if got := world.LinkPins(w, p.UID); got != 1 {
		t.Errorf("%d links where a container has a process without such a file, want 1", got)
	}
}

// TestAProbeStaysInAFileThatContainersShare ends the containers through which the probe of a file was
// made, and was to be made next. The link goes on for the others, which miss no call.
func TestAProbeStaysInAFileThatContainersShare(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), world.NewRuntime(t)
	a := onTurns(w, r, func(*agent.Options) {})
	p := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
	pods := map[string]*world.Pod{}
	for _, name := range []string{"a", "b", "c", "d"} {
		pods[name] = r.Start("team-a", name, "app", nil)
	}
	w.Give(a, p)
	rests(t, a)
	first := idsOf(a, p)
	is := func(sentence, in string, id []uint32) {
		t.Helper()
		if links, _ := placesOf(a, p.UID); !slices.Equal(links, []string{"/app:work in pod team-a/" + in + " container app"}) || !slices.Equal(idsOf(a, p), id) {
			t.Errorf("%s: the links %v are told in %v, want %v in that of %s", sentence, idsOf(a, p), links, id, in)
		}
		before := world.Counted(w, p.UID)
		if pods["d"].Runs("app"); world.Counted(w, p.UID) != before+world.Worked {
			t.Errorf("%s: %d calls of %d are counted", sentence, world.Counted(w, p.UID)-before, world.Worked)
		}
	}
	is("at first", "a", first)
	pods["a"].Dies()
	for a.ReconcileIfWoken(t.Context()) {
		is("without the first container", "b", first)
	}
	// The runtime has not told yet that c ended.
	pods["c"].Task.Ends()
	pods["b"].Dies()
	for a.ReconcileIfWoken(t.Context()) {
		is("without the second, and with a third that has ended", "c", first)
	}
	pods["c"].Ends()
	rests(t, a)
	is("with the last container", "d", first)
}
