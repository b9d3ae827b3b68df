package agent_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/events"
	"github.com/skep-dev/skep/test/harness/need"
)

// pods stands for what knows the pods of a node: network namespaces, and which of them the
// applications are for.
type pods struct {
	t   testing.TB
	mu  sync.Mutex
	all map[string]pod
	// of names the pods that applications are for.
	of map[string][]string
	// err says why the pods are not known.
	err error
}

// pod is a network namespace with a device eth0, whose peer in that of the test is named after
// the pod.
type pod struct {
	id   uint64
	path string
	peer string
}

func newPods(t testing.TB) *pods {
	t.Helper()
	return &pods{t: t, all: map[string]pod{}, of: map[string][]string{}}
}

// add makes a pod.
func (p *pods) add(name string) pod {
	p.t.Helper()
	one := pod{path: world.Namespace(p.t), peer: "pod-" + name}
	var st unix.Stat_t
	if err := unix.Stat(one.path, &st); err != nil {
		p.t.Fatal(err)
	}
	one.id = st.Ino
	world.Eth0(p.t, one.path, one.peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[name] = one
	return one
}

// end ends a pod as a container runtime does: its name goes, and what knows the pods tells so
// later where forget is false.
func (p *pods) end(name string, forget bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := unix.Unmount(p.all[name].path, unix.MNT_DETACH); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Remove(p.all[name].path); err != nil {
		p.t.Fatal(err)
	}
	if forget {
		delete(p.all, name)
	}
}

// know sets why the pods are not known; nil where they are.
func (p *pods) know(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// choose has an application be for some pods.
func (p *pods) choose(application string, names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[application] = names
}

// namespaces are those of the pods.
func (p *pods) namespaces() agent.Namespaces {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids, known := map[string]uint64{}, agent.Namespaces{Err: p.err}
	of := map[string][]string{}
	for name, one := range p.all {
		ids[name] = one.id
		known.All = append(known.All, agent.Namespace{ID: one.id, In: "pod " + name, Open: func() (*os.File, error) { return os.Open(one.path) }})
	}
	for application, names := range p.of {
		of[application] = slices.Clone(names)
	}
	known.Choose = func(application v1alpha1.Identity, _ v1alpha1.Attachment) (chosen []uint64, ok bool, err error) {
		names, ok := of[application.Name]
		for _, name := range names {
			if ids[name] != 0 {
				chosen = append(chosen, ids[name])
			}
		}
		return chosen, ok, nil
	}
	return known
}

// startIn runs an agent that knows the pods.
func startIn(w *world.World, p *pods) (*agent.Agent, func()) {
	w.T.Helper()
	a, err := agent.New(w.Options())
	if err != nil {
		w.T.Fatal(err)
	}
	return a.InNamespaces(p.namespaces), w.Serve(a)
}

// counter is an application that counts packets on eth0.
func counter(w *world.World, name, hook, object string, priority int32) intent.Payload {
	at := world.On(hook, "eth0")
	at[0].Priority = &priority
	return w.Intent(name, object, v1alpha1.Program{Name: world.FunctionOf(hook), Attach: at})
}

// chainsByLabel are the chains, each as "label: application application".
func chainsByLabel(t testing.TB, a *agent.Agent) []string {
	t.Helper()
	chains, err := a.Chains()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, c := range chains {
		var names []string
		for _, m := range c.Members {
			names = append(names, m.Application)
		}
		all = append(all, c.Label()+": "+strings.Join(names, " "))
	}
	slices.Sort(all)
	return all
}

// held returns how many descriptors of this process are of network namespaces of pods.
func (p *pods) held() int {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	var ids []uint64
	for _, one := range p.all {
		ids = append(ids, one.id)
	}
	return world.HeldNamespaces(p.t, ids...)
}

// hasNo reports whether no interface of the test's namespace has the name.
func hasNo(name string) bool {
	_, err := netlink.LinkByName(name)
	return errors.As(err, new(netlink.LinkNotFoundError))
}

func sameEth0(t *testing.T, pods ...pod) {
	t.Helper()
	for _, p := range pods {
		world.Within(t, p.path, func() error {
			if i := world.Index(t, "eth0"); i != 2 {
				t.Errorf("eth0 of %s has index %d", p.peer, i)
			}
			return nil
		})
	}
}

// onDevices runs a test for each kind of hook on devices, in a world of its own with the pods p
// and q that nobody chose yet.
func onDevices(t *testing.T, test func(t *testing.T, w *world.World, known *pods, p, q pod, hook, object string)) {
	need.Kernel(t)
	world.Quiet(t)
	for hook, object := range map[string]string{"xdp": "xdp_count", "tcx/ingress": "tcx_count", "tc/ingress": "tcx_count"} {
		t.Run(hook, func(t *testing.T) {
			world.NeedHook(t, hook)
			w, known := world.New(t), newPods(t)
			test(t, w, known, known.add("p"), known.add("q"), hook, object)
		})
	}
}

// TestProgramsRunInThePodsThatTheyAreFor: eth0 of both pods has one index. Application a is for
// both, b for one, and other for the agent's own interface.
func TestProgramsRunInThePodsThatTheyAreFor(t *testing.T) {
	onDevices(t, func(t *testing.T, w *world.World, known *pods, p, q pod, hook, object string) {
		sameEth0(t, p, q)
		known.choose("a", "p", "q")
		known.choose("b", "q")
		world.Veth(t, "eth0", "eth1")
		a, stop := startIn(w, known)
		w.Must(a, counter(w, "a", hook, object, 500), counter(w, "b", hook, object, 400), counter(w, "other", hook, object, 1))
		counts := func(toP, toQ, toOwn uint64) {
			t.Helper()
			world.Send(t, p.peer, int(toP))
			world.Send(t, q.peer, int(toQ))
			world.Send(t, "eth1", int(toOwn))
		}
		sums := func(want map[string]uint64) {
			t.Helper()
			got := map[string]uint64{}
			world.Until(t, fmt.Sprint("the packets to be counted: ", want), 20*time.Second, func() bool {
				for name := range want {
					got[name] = world.Count(t, world.Counts(w, a, name))
				}
				return gocmp.Equal(want, got)
			})
		}
		counts(10, 3, 1)
		sums(map[string]uint64{"a": 13, "b": 3, "other": 1})
		if hook == "xdp" {
			if diff := gocmp.Diff([]string{"eth0 in pod p: a", "eth0 in pod q: b a", "eth0: other"}, chainsByLabel(t, a)); diff != "" {
				t.Errorf("chains (-want +got):\n%s", diff)
			}
			pin := filepath.Join(w.BPFFS, "+xdp", plan.Device{NetnsID: q.id, Index: 2}.String(), "link")
			if _, err := os.Stat(pin); err != nil {
				t.Error(err)
			}
		}
		isListed(w, hook, "eth0 in pod p", "eth0 in pod q", "eth0")
		world.Until(t, "the namespaces to be closed", 3*time.Second, func() bool { return known.held() == 0 })
		before := world.LinksOf(a)
		stop()
		a, _ = startIn(w, known)
		w.Must(a)
		if diff := gocmp.Diff(before, world.LinksOf(a)); diff != "" || len(before) != 4 {
			t.Errorf("after a restart (-want +got):\n%s", diff)
		}
		counts(1, 1, 1)
		sums(map[string]uint64{"a": 15, "b": 4, "other": 2})
		w.Must(a, w.Gone("a"), w.Gone("b"), w.Gone("other"))
		w.LeavesNothing()
		world.Until(t, "the namespaces to be closed", 3*time.Second, func() bool { return known.held() == 0 })
	})
}

// isListed holds that the inventory names the targets of Skep's programs on a hook.
func isListed(w *world.World, hook string, targets ...string) {
	w.T.Helper()
	inv, err := inventory.List(w.T.Context(), inventory.Options{Managed: w.BPFFS})
	if err != nil {
		w.T.Fatal(err)
	}
	found := map[string]bool{}
	for _, p := range inv.Programs {
		for _, place := range p.Attached {
			if p.Managed && (place.Hook == hook || place.Hook == "tc/ingress" && !world.HasTCX()) {
				found[place.Target] = true
			}
		}
	}
	got, want := slices.Sorted(maps.Keys(found)), slices.Sorted(slices.Values(targets))
	if diff := gocmp.Diff(want, got); diff != "" {
		w.T.Errorf("places (-want +got):\n%s", diff)
	}
}

// TestProgramsInAPodRunInOrder: the program of b lets none run behind it.
func TestProgramsInAPodRunInOrder(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	for _, hook := range []string{"tcx/ingress", "tc/ingress"} {
		t.Run(hook, func(t *testing.T) {
			world.NeedHook(t, hook)
			w, known := world.New(t), newPods(t)
			p := known.add("p")
			known.add("q")
			app := func(name string, priority int32, verdict int) intent.Payload {
				known.choose(name, "p", "q")
				one := world.Ordered(w, hook, name, priority, verdict)
				one.Programs[0].Attach[0].Interfaces.Names = []string{"eth0"}
				return one
			}
			a, _ := startIn(w, known)
			w.Must(a, app("c", 300, -1), app("a", 100, -1), app("b", 200, 0))
			if diff := gocmp.Diff([]string{"a", "b"}, world.RanFor(t, a, p.peer)); diff != "" {
				t.Errorf("ran (-want +got):\n%s", diff)
			}
			w.Must(a, app("c", 50, -1))
			if diff := gocmp.Diff([]string{"a", "b", "c"}, world.RanFor(t, a, p.peer)); diff != "" {
				t.Errorf("after c moved, ran (-want +got):\n%s", diff)
			}
			w.Must(a, w.Gone("a"), w.Gone("b"), w.Gone("c"))
			w.LeavesNothing()
			world.Within(t, p.path, func() error {
				world.HasNoQdisc(t, "eth0")
				return nil
			})
		})
	}
}

// TestAnUpdateInAPodMissesNoPacket sends packets to both pods through ten updates.
func TestAnUpdateInAPodMissesNoPacket(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	for hook, object := range map[string][2]string{
		"xdp":         {"xdp_count", "xdp_count_v2"},
		"tcx/ingress": {"tcx_count", "tcx_count_v2"},
		"tc/ingress":  {"tcx_count", "tcx_count_v2"},
	} {
		t.Run(hook, func(t *testing.T) {
			world.NeedHook(t, hook)
			w, known := world.New(t), newPods(t)
			p, q := known.add("p"), known.add("q")
			known.choose("counter", "p", "q")
			known.choose("neighbour", "q")
			a, _ := startIn(w, known)
			w.Must(a, counter(w, "counter", hook, object[0], 500), counter(w, "neighbour", hook, object[0], 1))
			before := world.Count(t, world.Counts(w, a, "counter"))
			stopP, stopQ := world.Traffic(t, p.peer, 10000), world.Traffic(t, q.peer, 10000)
			for version := range 10 {
				w.Must(a, counter(w, "counter", hook, object[(version+1)%2], 500))
			}
			sent := stopP() + stopQ()
			world.Until(t, "the last packet", time.Minute, func() bool { return world.Count(t, world.Counts(w, a, "counter"))-before >= sent })
			if got := world.Count(t, world.Counts(w, a, "counter")) - before; got != sent {
				t.Errorf("%d packets sent, %d counted", sent, got)
			}
			t.Logf("%d packets through 10 updates, none lost", sent)
		})
	}
}

// TestAPodThatEndsIsForgotten: what knows the pods may tell it before or after. Nothing keeps the
// network namespace, and what runs in another pod stays.
func TestAPodThatEndsIsForgotten(t *testing.T) {
	for _, forget := range []bool{true, false} {
		t.Run(fmt.Sprintf("told %v", forget), func(t *testing.T) {
			onDevices(t, func(t *testing.T, w *world.World, known *pods, p, q pod, hook, object string) {
				known.choose("a", "p", "q")
				known.choose("b", "p")
				a, _ := startIn(w, known)
				w.Must(a, counter(w, "a", hook, object, 500), counter(w, "b", hook, object, 400))
				stays := world.LinksOf(a)["a "+hook+" eth0 in pod q"]
				known.end("p", forget)
				world.Until(t, "the kernel to free the namespace", 20*time.Second, func() bool { return hasNo(p.peer) })
				a.NamespacesChanged()
				want := map[string]uint32{"a " + hook + " eth0 in pod q": stays}
				world.Until(t, "the pod to be forgotten", 20*time.Second, func() bool { return gocmp.Equal(want, world.LinksOf(a)) })
				a.Reconcile(t.Context())
				if pins := pinsOf(w, p); len(pins) > 0 {
					t.Errorf("pins: %v", pins)
				}
				for _, s := range a.Status() {
					if s.Error != "" {
						t.Errorf("%s: %s", s.Application, s.Error)
					}
				}
				world.Send(t, q.peer, 5)
				world.Until(t, "the packets", 20*time.Second, func() bool { return world.Count(t, world.Counts(w, a, "a")) == 5 })
			})
		})
	}
}

// pinsOf are the pins and texts that name the network namespace of a pod.
func pinsOf(w *world.World, p pod) []string {
	w.T.Helper()
	var all []string
	err := filepath.Walk(w.BPFFS, func(path string, _ os.FileInfo, err error) error {
		text, _ := os.Readlink(path)
		if id := fmt.Sprint(p.id); strings.Contains(path, id) || strings.Contains(text, id) {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		w.T.Error(err)
	}
	return all
}

// TestWhatIsDetachedInAPodIsPutBack has somebody detach it.
func TestWhatIsDetachedInAPodIsPutBack(t *testing.T) {
	onDevices(t, func(t *testing.T, w *world.World, known *pods, p, q pod, hook, object string) {
		known.choose("a", "p", "q")
		a, _ := startIn(w, known)
		w.Must(a, counter(w, "a", hook, object, 500))
		links := world.LinksOf(a)
		detach(t, p, links["a "+hook+" eth0 in pod p"])
		world.Until(t, "the program to be put back", time.Minute, func() bool {
			world.Send(t, p.peer, 1)
			return world.Count(t, world.Counts(w, a, "a")) > 0
		})
		if got, was := world.LinksOf(a)["a "+hook+" eth0 in pod q"], links["a "+hook+" eth0 in pod q"]; got != was {
			t.Errorf("the link of the other pod was %d and is %d", was, got)
		}
	})
}

// detach takes a link away, or all filters of a pod where the id is 0.
func detach(t *testing.T, p pod, id uint32) {
	t.Helper()
	if id == 0 {
		world.Within(t, p.path, func() error {
			for _, f := range world.FiltersOf(t, "eth0", false) {
				if err := netlink.FilterDel(f); err != nil {
					return err
				}
			}
			return nil
		})
		return
	}
	l, err := link.NewFromID(link.ID(id))
	world.Must(t, err)
	world.Must(t, errors.Join(l.Detach(), l.Close()))
}

// TestPodsThatAreNotKnownLoseNothing: as when the agent starts before the container runtime
// answers.
func TestPodsThatAreNotKnownLoseNothing(t *testing.T) {
	onDevices(t, func(t *testing.T, w *world.World, known *pods, p, q pod, hook, object string) {
		known.choose("a", "p")
		known.choose("b", "p")
		a, stop := startIn(w, known)
		w.Must(a, counter(w, "a", hook, object, 500), counter(w, "b", hook, object, 400))
		before := world.LinksOf(a)
		stop()
		known.know(errors.New("no answer"))
		hidden := known.all
		known.all = map[string]pod{}
		a, _ = startIn(w, known)
		w.Must(a, counter(w, "a", hook, object, 500))
		for range 3 {
			a.Reconcile(t.Context())
		}
		world.Send(t, p.peer, 4)
		world.Until(t, "the packets", 20*time.Second, func() bool {
			return world.Count(t, world.Counts(w, a, "a")) == 4 && world.Count(t, world.Counts(w, a, "b")) == 4
		})
		known.mu.Lock()
		known.all, known.err = hidden, nil
		known.mu.Unlock()
		a.NamespacesChanged()
		world.Until(t, "the pods to be known", 20*time.Second, func() bool { return gocmp.Equal(before, world.LinksOf(a)) })
	})
}

// TestTheOwnNamespaceIsNoPods: a pod of the host network does not give its application the
// interfaces of the node.
func TestTheOwnNamespaceIsNoPods(t *testing.T) {
	need.Kernel(t)
	w, known := world.New(t), newPods(t)
	var st unix.Stat_t
	world.Must(t, unix.Stat("/proc/self/ns/net", &st))
	known.all["host"] = pod{id: st.Ino, path: "/proc/self/ns/net"}
	known.choose("a", "host")
	world.Veth(t, "eth0", "eth1")
	a, _ := startIn(w, known)
	w.Must(a, counter(w, "a", "xdp", "xdp_count", 500))
	if links := world.LinksOf(a); len(links) > 0 {
		t.Errorf("links: %v", links)
	}
}

// TestAPodWithoutTheInterfaceIsWaitedFor, and others are not.
func TestAPodWithoutTheInterfaceIsWaitedFor(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w, known := world.New(t), newPods(t)
	p := known.add("p")
	known.add("q")
	world.Within(t, p.path, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, "net1"))
	})
	known.choose("a", "p", "q")
	a, _ := startIn(w, known)
	w.Must(a, counter(w, "a", "xdp", "xdp_count", 500))
	if links := world.LinksOf(a); len(links) != 1 || links["a xdp eth0 in pod q"] == 0 {
		t.Errorf("links: %v", links)
	}
	c := a.Status()[0].Conditions[0]
	if c.Reason != "Waiting" || !strings.Contains(c.Message, "no interface of pod p is chosen by names eth0") {
		t.Errorf("condition: %+v", c)
	}
	world.Within(t, p.path, func() error {
		l, err := netlink.LinkByName("net1")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetName(l, "eth0"), netlink.LinkSetUp(l))
	})
	a.NamespacesChanged()
	world.Until(t, "the interface to be seen", 20*time.Second, func() bool { return len(world.LinksOf(a)) == 2 })
}

// TestPodsThatComeAndGoLeaveNothing has fifty pods come and go.
func TestPodsThatComeAndGoLeaveNothing(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w, known := world.New(t), newPods(t)
	a, _ := startIn(w, known)
	known.choose("x", "p")
	known.choose("t", "p")
	w.Must(a, counter(w, "x", "xdp", "xdp_count", 500), counter(w, "t", "tc/ingress", "tcx_count", 500))
	cycle := func() {
		p := known.add("p")
		a.NamespacesChanged()
		world.Until(t, "the pod to be attached to", 20*time.Second, func() bool { return len(world.LinksOf(a)) == 2 })
		known.end("p", true)
		a.NamespacesChanged()
		world.Until(t, "the namespace to be freed", 20*time.Second, func() bool { return hasNo(p.peer) && len(world.LinksOf(a)) == 0 })
		world.Until(t, "the pins to go", 20*time.Second, func() bool { a.Reconcile(t.Context()); return len(pinsOf(w, p)) == 0 })
	}
	cycle()
	files := descriptors(t)
	links, err := netlink.LinkList()
	world.Must(t, err)
	for range 50 {
		cycle()
	}
	world.Until(t, "descriptors to be closed", 20*time.Second, func() bool { return descriptors(t) <= files })
	if now, err := netlink.LinkList(); err != nil || len(now) != len(links) {
		t.Errorf("%d interfaces, and %d before (%v)", len(now), len(links), err)
	}
}

func descriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestWhatAKilledAgentLeftInAPod: a filter without a link is found when the pod is seen again.
func TestWhatAKilledAgentLeftInAPod(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	world.NeedHook(t, "tc/ingress")
	w, known := world.New(t), newPods(t)
	p := known.add("p")
	known.choose("a", "p")
	a, stop := startIn(w, known)
	w.Must(a, counter(w, "a", "tc/ingress", "tcx_count", 500))
	_, l := world.One(t, a)
	stop()
	world.Must(t, os.Remove(l.Pin))
	world.Must(t, os.Remove(l.Pin+"+at"))
	known.choose("a")
	a, _ = startIn(w, known)
	w.Must(a)
	world.Until(t, "the filter to be taken away", 20*time.Second, func() bool {
		left := 1
		world.Within(t, p.path, func() error {
			left = len(world.FiltersOf(t, "eth0", false))
			return nil
		})
		return left == 0
	})
	world.Within(t, p.path, func() error {
		world.HasNoQdisc(t, "eth0")
		return nil
	})
}

// TestACleanupLeavesNothingInPods whose processes run.
func TestACleanupLeavesNothingInPods(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	world.NeedHook(t, "tc/ingress")
	w, known := world.New(t), newPods(t)
	p := known.add("p")
	known.choose("x", "p")
	known.choose("t", "p")
	process := exec.CommandContext(t.Context(), "sleep", "infinity")
	world.Within(t, p.path, process.Start)
	defer func() { _ = errors.Join(process.Process.Kill(), process.Wait()) }()
	a, err := agent.New(w.Options())
	world.Must(t, err)
	a.InNamespaces(known.namespaces)
	w.Give(a, counter(w, "x", "xdp", "xdp_count", 500), counter(w, "t", "tc/ingress", "tcx_count", 500))
	world.Until(t, "the programs to run", 20*time.Second, func() bool { a.Reconcile(t.Context()); return len(world.LinksOf(a)) == 2 })
	world.Must(t, a.Close())
	world.Must(t, agent.Cleanup(w.BPFFS, filepath.Join(w.Dir, "state")))
	w.LeavesNothing()
	world.Within(t, p.path, func() error {
		if left := world.FiltersOf(t, "eth0", false); len(left) > 0 {
			t.Errorf("filters: %v", left)
		}
		return nil
	})
}

// TestTheOrderInANamespaceIsRead reads it for one that is there and one that is not.
func TestTheOrderInANamespaceIsRead(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "tcx/ingress")
	if !world.HasTCX() {
		t.Skip("SKIPPED: the kernel has no TCX")
	}
	known, table := newPods(t), netns.NewTable()
	p := known.add("p")
	all := known.namespaces()
	table.Renew(all.All, nil)
	defer table.Close()
	if _, err := attach.Order("tcx/ingress", plan.Device{NetnsID: p.id, Index: 2}, table); err != nil {
		t.Error(err)
	}
	for _, d := range []plan.Device{{NetnsID: p.id, Index: 99}, {NetnsID: 1, Index: 2}} {
		if _, err := attach.Order("tcx/ingress", d, table); !errors.Is(err, attach.ErrTarget) {
			t.Errorf("Order of %s = %v", d, err)
		}
	}
	events.Frame(t, p.peer)
}

// TestANamespaceHasItsShareOfEachPodsInterface: what an application takes of one pod's interface,
// it does not take of another's.
func TestANamespaceHasItsShareOfEachPodsInterface(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "tcx/ingress")
	if !world.HasTCX() {
		t.Skip("SKIPPED: the kernel has no TCX")
	}
	w, known := world.New(t), newPods(t)
	known.add("p")
	known.add("q")
	known.choose("one", "p")
	known.choose("two", "q")
	known.choose("more", "p")
	a, _ := startIn(w, known)
	one := world.Tenant(world.TCX63(w, "eth0", 31), "zone", "one", 1, 500)
	two := world.Tenant(world.TCX63(w, "eth0", 31), "zone", "two", 2, 500)
	w.Must(a, one, two)
	if links := world.LinksOf(a); len(links) != 2 {
		t.Errorf("links: %v", links)
	}
	err := w.Accept(a, world.Tenant(world.TCX63(w, "eth0", 1), "zone", "more", 3, 500))
	if err == nil || !strings.Contains(err.Error(), "place programs on tcx/ingress of eth0 in pod p: programs: it takes 1, namespace zone holds 31") {
		t.Errorf("the third one is told %v", err)
	}
}

// TestPinsOfBeforeHaveNoText: a chain whose link was pinned without a note of its interface is
// adopted.
func TestPinsOfBeforeHaveNoText(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "sk0", "sk1")
	a, stop := w.Start()
	w.Must(a, w.Intent("counter", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "sk0")}))
	before := world.LinksOf(a)
	stop()
	pin := filepath.Join(w.BPFFS, "+xdp", fmt.Sprint(world.Index(t, "sk0")), "link")
	if _, err := os.Stat(pin); err != nil {
		t.Fatal(err)
	}
	world.Must(t, os.Remove(pin+"+at"))
	a, _ = w.Start()
	w.Must(a)
	if diff := gocmp.Diff(before, world.LinksOf(a)); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
}
