package agent_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
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
	one := pod{path: namespace(p.t), peer: "pod-" + name}
	var st unix.Stat_t
	if err := unix.Stat(one.path, &st); err != nil {
		p.t.Fatal(err)
	}
	one.id = st.Ino
	eth0(p.t, one.path, one.peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[name] = one
	return one
}

// eth0 makes a device eth0 in the network namespace at the path, and its peer in that of the test.
func eth0(t testing.TB, path, name string) {
	t.Helper()
	// The first thread may be in a pod's for a moment, by the agent.
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	within(t, path, func() error {
		quiet(t)
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: name, PeerNamespace: netlink.NsFd(int(own.Fd()))}
		if err := netlink.LinkAdd(l); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	peer, err := netlink.LinkByName(name)
	t.Cleanup(func() { _ = netlink.LinkDel(peer) })
	if err == nil {
		err = netlink.LinkSetUp(peer)
	}
	if err != nil {
		t.Fatal(err)
	}
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
func (w *world) startIn(p *pods) (*agent.Agent, func()) {
	w.t.Helper()
	a, err := agent.New(w.options())
	if err != nil {
		w.t.Fatal(err)
	}
	return a.InNamespaces(p.namespaces), w.serve(a)
}

// counter is an application that counts packets on eth0.
func (w *world) counter(name, hook, object string, priority int32) intent.Payload {
	at := on(hook, "eth0")
	at[0].Priority = &priority
	return w.intent(name, object, v1alpha1.Program{Name: functionOf(hook), Attach: at})
}

// linksOf are the links of all applications by application and target.
func linksOf(a *agent.Agent) map[string]uint32 {
	all := map[string]uint32{}
	for _, s := range a.Status() {
		for _, program := range s.Programs {
			for _, l := range program.Links {
				if l.State == agent.Attached {
					all[s.Application.Name+" "+l.Hook+" "+l.Target] = l.ID
				}
			}
		}
	}
	return all
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
	return heldNamespaces(p.t, ids...)
}

// heldNamespaces counts the descriptors of this process that are of network namespaces.
func heldNamespaces(t testing.TB, ids ...uint64) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		var st unix.Stat_t
		var is unix.Statfs_t
		path := "/proc/self/fd/" + f.Name()
		if unix.Stat(path, &st) == nil && slices.Contains(ids, st.Ino) && unix.Statfs(path, &is) == nil && is.Type == unix.NSFS_MAGIC {
			n++
		}
	}
	return n
}

// hasNo reports whether no interface of the test's namespace has the name.
func hasNo(name string) bool {
	_, err := netlink.LinkByName(name)
	return errors.As(err, new(netlink.LinkNotFoundError))
}

func sameEth0(t *testing.T, pods ...pod) {
	t.Helper()
	for _, p := range pods {
		within(t, p.path, func() error {
			if i := index(t, "eth0"); i != 2 {
				t.Errorf("eth0 of %s has index %d", p.peer, i)
			}
			return nil
		})
	}
}

// onDevices runs a test for each kind of hook on devices, in a world of its own with the pods p
// and q that nobody chose yet.
func onDevices(t *testing.T, test func(t *testing.T, w *world, known *pods, p, q pod, hook, object string)) {
	need.Kernel(t)
	quiet(t)
	for hook, object := range map[string]string{"xdp": "xdp_count", "tcx/ingress": "tcx_count", "tc/ingress": "tcx_count"} {
		t.Run(hook, func(t *testing.T) {
			needHook(t, hook)
			w, known := newWorld(t), newPods(t)
			test(t, w, known, known.add("p"), known.add("q"), hook, object)
		})
	}
}

// TestProgramsRunInThePodsThatTheyAreFor: eth0 of both pods has one index. Application a is for
// both, b for one, and other for the agent's own interface.
func TestProgramsRunInThePodsThatTheyAreFor(t *testing.T) {
	onDevices(t, func(t *testing.T, w *world, known *pods, p, q pod, hook, object string) {
		sameEth0(t, p, q)
		known.choose("a", "p", "q")
		known.choose("b", "q")
		veth(t, "eth0", "eth1")
		a, stop := w.startIn(known)
		w.must(a, w.counter("a", hook, object, 500), w.counter("b", hook, object, 400), w.counter("other", hook, object, 1))
		counts := func(toP, toQ, toOwn uint64) {
			t.Helper()
			send(t, p.peer, int(toP))
			send(t, q.peer, int(toQ))
			send(t, "eth1", int(toOwn))
		}
		sums := func(want map[string]uint64) {
			t.Helper()
			got := map[string]uint64{}
			until(t, fmt.Sprint("the packets to be counted: ", want), 20*time.Second, func() bool {
				for name := range want {
					got[name] = count(t, w.counts(a, name))
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
			pin := filepath.Join(w.bpffs, "+xdp", plan.Device{NetnsID: q.id, Index: 2}.String(), "link")
			if _, err := os.Stat(pin); err != nil {
				t.Error(err)
			}
		}
		w.isListed(hook, "eth0 in pod p", "eth0 in pod q", "eth0")
		until(t, "the namespaces to be closed", 3*time.Second, func() bool { return known.held() == 0 })
		before := linksOf(a)
		stop()
		a, _ = w.startIn(known)
		w.must(a)
		if diff := gocmp.Diff(before, linksOf(a)); diff != "" || len(before) != 4 {
			t.Errorf("after a restart (-want +got):\n%s", diff)
		}
		counts(1, 1, 1)
		sums(map[string]uint64{"a": 15, "b": 4, "other": 2})
		w.must(a, w.gone("a"), w.gone("b"), w.gone("other"))
		w.leavesNothing()
		until(t, "the namespaces to be closed", 3*time.Second, func() bool { return known.held() == 0 })
	})
}

// isListed holds that the inventory names the targets of Skep's programs on a hook.
func (w *world) isListed(hook string, targets ...string) {
	w.t.Helper()
	inv, err := inventory.List(w.t.Context(), inventory.Options{Managed: w.bpffs})
	if err != nil {
		w.t.Fatal(err)
	}
	found := map[string]bool{}
	for _, p := range inv.Programs {
		for _, place := range p.Attached {
			if p.Managed && (place.Hook == hook || place.Hook == "tc/ingress" && !hasTCX()) {
				found[place.Target] = true
			}
		}
	}
	got, want := slices.Sorted(maps.Keys(found)), slices.Sorted(slices.Values(targets))
	if diff := gocmp.Diff(want, got); diff != "" {
		w.t.Errorf("places (-want +got):\n%s", diff)
	}
}

// TestProgramsInAPodRunInOrder: the program of b lets none run behind it.
func TestProgramsInAPodRunInOrder(t *testing.T) {
	need.Kernel(t)
	quiet(t)
	for _, hook := range []string{"tcx/ingress", "tc/ingress"} {
		t.Run(hook, func(t *testing.T) {
			needHook(t, hook)
			w, known := newWorld(t), newPods(t)
			p := known.add("p")
			known.add("q")
			app := func(name string, priority int32, verdict int) intent.Payload {
				known.choose(name, "p", "q")
				one := w.ordered(hook, name, priority, verdict)
				one.Programs[0].Attach[0].Interfaces.Names = []string{"eth0"}
				return one
			}
			a, _ := w.startIn(known)
			w.must(a, app("c", 300, -1), app("a", 100, -1), app("b", 200, 0))
			if diff := gocmp.Diff([]string{"a", "b"}, ranFor(t, a, p.peer)); diff != "" {
				t.Errorf("ran (-want +got):\n%s", diff)
			}
			w.must(a, app("c", 50, -1))
			if diff := gocmp.Diff([]string{"a", "b", "c"}, ranFor(t, a, p.peer)); diff != "" {
				t.Errorf("after c moved, ran (-want +got):\n%s", diff)
			}
			w.must(a, w.gone("a"), w.gone("b"), w.gone("c"))
			w.leavesNothing()
			within(t, p.path, func() error {
				hasNoQdisc(t, "eth0")
				return nil
			})
		})
	}
}

// TestAnUpdateInAPodMissesNoPacket sends packets to both pods through ten updates.
func TestAnUpdateInAPodMissesNoPacket(t *testing.T) {
	need.Kernel(t)
	quiet(t)
	for hook, object := range map[string][2]string{
		"xdp":         {"xdp_count", "xdp_count_v2"},
		"tcx/ingress": {"tcx_count", "tcx_count_v2"},
		"tc/ingress":  {"tcx_count", "tcx_count_v2"},
	} {
		t.Run(hook, func(t *testing.T) {
			needHook(t, hook)
			w, known := newWorld(t), newPods(t)
			p, q := known.add("p"), known.add("q")
			known.choose("counter", "p", "q")
			known.choose("neighbour", "q")
			a, _ := w.startIn(known)
			w.must(a, w.counter("counter", hook, object[0], 500), w.counter("neighbour", hook, object[0], 1))
			before := count(t, w.counts(a, "counter"))
			stopP, stopQ := traffic(t, p.peer, 10000), traffic(t, q.peer, 10000)
			for version := range 10 {
				w.must(a, w.counter("counter", hook, object[(version+1)%2], 500))
			}
			sent := stopP() + stopQ()
			until(t, "the last packet", time.Minute, func() bool { return count(t, w.counts(a, "counter"))-before >= sent })
			if got := count(t, w.counts(a, "counter")) - before; got != sent {
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
			onDevices(t, func(t *testing.T, w *world, known *pods, p, q pod, hook, object string) {
				known.choose("a", "p", "q")
				known.choose("b", "p")
				a, _ := w.startIn(known)
				w.must(a, w.counter("a", hook, object, 500), w.counter("b", hook, object, 400))
				stays := linksOf(a)["a "+hook+" eth0 in pod q"]
				known.end("p", forget)
				until(t, "the kernel to free the namespace", 20*time.Second, func() bool { return hasNo(p.peer) })
				a.NamespacesChanged()
				want := map[string]uint32{"a " + hook + " eth0 in pod q": stays}
				until(t, "the pod to be forgotten", 20*time.Second, func() bool { return gocmp.Equal(want, linksOf(a)) })
				a.Reconcile(t.Context())
				if pins := w.pinsOf(p); len(pins) > 0 {
					t.Errorf("pins: %v", pins)
				}
				for _, s := range a.Status() {
					if s.Error != "" {
						t.Errorf("%s: %s", s.Application, s.Error)
					}
				}
				send(t, q.peer, 5)
				until(t, "the packets", 20*time.Second, func() bool { return count(t, w.counts(a, "a")) == 5 })
			})
		})
	}
}

// pinsOf are the pins and texts that name the network namespace of a pod.
func (w *world) pinsOf(p pod) []string {
	w.t.Helper()
	var all []string
	err := filepath.Walk(w.bpffs, func(path string, _ os.FileInfo, err error) error {
		text, _ := os.Readlink(path)
		if id := fmt.Sprint(p.id); strings.Contains(path, id) || strings.Contains(text, id) {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		w.t.Error(err)
	}
	return all
}

// TestWhatIsDetachedInAPodIsPutBack has somebody detach it.
func TestWhatIsDetachedInAPodIsPutBack(t *testing.T) {
	onDevices(t, func(t *testing.T, w *world, known *pods, p, q pod, hook, object string) {
		known.choose("a", "p", "q")
		a, _ := w.startIn(known)
		w.must(a, w.counter("a", hook, object, 500))
		links := linksOf(a)
		detach(t, p, links["a "+hook+" eth0 in pod p"])
		until(t, "the program to be put back", time.Minute, func() bool {
			send(t, p.peer, 1)
			return count(t, w.counts(a, "a")) > 0
		})
		if got, was := linksOf(a)["a "+hook+" eth0 in pod q"], links["a "+hook+" eth0 in pod q"]; got != was {
			t.Errorf("the link of the other pod was %d and is %d", was, got)
		}
	})
}

// detach takes a link away, or all filters of a pod where the id is 0.
func detach(t *testing.T, p pod, id uint32) {
	t.Helper()
	if id == 0 {
		within(t, p.path, func() error {
			for _, f := range filtersOf(t, "eth0", false) {
				if err := netlink.FilterDel(f); err != nil {
					return err
				}
			}
			return nil
		})
		return
	}
	l, err := link.NewFromID(link.ID(id))
	must(t, err)
	must(t, errors.Join(l.Detach(), l.Close()))
}

// TestPodsThatAreNotKnownLoseNothing: as when the agent starts before the container runtime
// answers.
func TestPodsThatAreNotKnownLoseNothing(t *testing.T) {
	onDevices(t, func(t *testing.T, w *world, known *pods, p, q pod, hook, object string) {
		known.choose("a", "p")
		known.choose("b", "p")
		a, stop := w.startIn(known)
		w.must(a, w.counter("a", hook, object, 500), w.counter("b", hook, object, 400))
		before := linksOf(a)
		stop()
		known.know(errors.New("no answer"))
		hidden := known.all
		known.all = map[string]pod{}
		a, _ = w.startIn(known)
		w.must(a, w.counter("a", hook, object, 500))
		for range 3 {
			a.Reconcile(t.Context())
		}
		send(t, p.peer, 4)
		until(t, "the packets", 20*time.Second, func() bool { return count(t, w.counts(a, "a")) == 4 && count(t, w.counts(a, "b")) == 4 })
		known.mu.Lock()
		known.all, known.err = hidden, nil
		known.mu.Unlock()
		a.NamespacesChanged()
		until(t, "the pods to be known", 20*time.Second, func() bool { return gocmp.Equal(before, linksOf(a)) })
	})
}

// TestTheOwnNamespaceIsNoPods: a pod of the host network does not give its application the
// interfaces of the node.
func TestTheOwnNamespaceIsNoPods(t *testing.T) {
	need.Kernel(t)
	w, known := newWorld(t), newPods(t)
	var st unix.Stat_t
	must(t, unix.Stat("/proc/self/ns/net", &st))
	known.all["host"] = pod{id: st.Ino, path: "/proc/self/ns/net"}
	known.choose("a", "host")
	veth(t, "eth0", "eth1")
	a, _ := w.startIn(known)
	w.must(a, w.counter("a", "xdp", "xdp_count", 500))
	if links := linksOf(a); len(links) > 0 {
		t.Errorf("links: %v", links)
	}
}

// TestAPodWithoutTheInterfaceIsWaitedFor, and others are not.
func TestAPodWithoutTheInterfaceIsWaitedFor(t *testing.T) {
	need.Kernel(t)
	quiet(t)
	w, known := newWorld(t), newPods(t)
	p := known.add("p")
	known.add("q")
	within(t, p.path, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, "net1"))
	})
	known.choose("a", "p", "q")
	a, _ := w.startIn(known)
	w.must(a, w.counter("a", "xdp", "xdp_count", 500))
	if links := linksOf(a); len(links) != 1 || links["a xdp eth0 in pod q"] == 0 {
		t.Errorf("links: %v", links)
	}
	c := a.Status()[0].Conditions[0]
	if c.Reason != "Waiting" || !strings.Contains(c.Message, "no interface of pod p is chosen by names eth0") {
		t.Errorf("condition: %+v", c)
	}
	within(t, p.path, func() error {
		l, err := netlink.LinkByName("net1")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetName(l, "eth0"), netlink.LinkSetUp(l))
	})
	a.NamespacesChanged()
	until(t, "the interface to be seen", 20*time.Second, func() bool { return len(linksOf(a)) == 2 })
}

// TestPodsThatComeAndGoLeaveNothing has fifty pods come and go.
func TestPodsThatComeAndGoLeaveNothing(t *testing.T) {
	need.Kernel(t)
	quiet(t)
	w, known := newWorld(t), newPods(t)
	a, _ := w.startIn(known)
	known.choose("x", "p")
	known.choose("t", "p")
	w.must(a, w.counter("x", "xdp", "xdp_count", 500), w.counter("t", "tc/ingress", "tcx_count", 500))
	cycle := func() {
		p := known.add("p")
		a.NamespacesChanged()
		until(t, "the pod to be attached to", 20*time.Second, func() bool { return len(linksOf(a)) == 2 })
		known.end("p", true)
		a.NamespacesChanged()
		until(t, "the namespace to be freed", 20*time.Second, func() bool { return hasNo(p.peer) && len(linksOf(a)) == 0 })
		until(t, "the pins to go", 20*time.Second, func() bool { a.Reconcile(t.Context()); return len(w.pinsOf(p)) == 0 })
	}
	cycle()
	files := descriptors(t)
	links, err := netlink.LinkList()
	must(t, err)
	for range 50 {
		cycle()
	}
	until(t, "descriptors to be closed", 20*time.Second, func() bool { return descriptors(t) <= files })
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
	quiet(t)
	needHook(t, "tc/ingress")
	w, known := newWorld(t), newPods(t)
	p := known.add("p")
	known.choose("a", "p")
	a, stop := w.startIn(known)
	w.must(a, w.counter("a", "tc/ingress", "tcx_count", 500))
	_, l := one(t, a)
	stop()
	must(t, os.Remove(l.Pin))
	must(t, os.Remove(l.Pin+"+at"))
	known.choose("a")
	a, _ = w.startIn(known)
	w.must(a)
	until(t, "the filter to be taken away", 20*time.Second, func() bool {
		left := 1
		within(t, p.path, func() error {
			left = len(filtersOf(t, "eth0", false))
			return nil
		})
		return left == 0
	})
	within(t, p.path, func() error {
		hasNoQdisc(t, "eth0")
		return nil
	})
}

// TestUnloadingANodeLeavesNothingInPods, whether or not an agent runs.
func TestUnloadingANodeLeavesNothingInPods(t *testing.T) {
	need.Kernel(t)
	quiet(t)
	needHook(t, "tc/ingress")
	w, known := newWorld(t), newPods(t)
	p := known.add("p")
	known.choose("x", "p")
	known.choose("t", "p")
	a, err := agent.New(w.options())
	must(t, err)
	a.InNamespaces(known.namespaces)
	defer func() { must(t, a.Close()) }()
	w.give(a, w.counter("x", "xdp", "xdp_count", 500), w.counter("t", "tc/ingress", "tcx_count", 500))
	until(t, "the programs to run", 20*time.Second, func() bool { a.Reconcile(t.Context()); return len(linksOf(a)) == 2 })
	must(t, a.Unload())
	w.leavesNothing()
	within(t, p.path, func() error {
		if left := filtersOf(t, "eth0", false); len(left) > 0 {
			t.Errorf("filters: %v", left)
		}
		return nil
	})
}

// TestTheOrderInANamespaceIsRead reads it for one that is there and one that is not.
func TestTheOrderInANamespaceIsRead(t *testing.T) {
	need.Kernel(t)
	needHook(t, "tcx/ingress")
	if !hasTCX() {
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
	needHook(t, "tcx/ingress")
	if !hasTCX() {
		t.Skip("SKIPPED: the kernel has no TCX")
	}
	w, known := newWorld(t), newPods(t)
	known.add("p")
	known.add("q")
	known.choose("one", "p")
	known.choose("two", "q")
	known.choose("more", "p")
	a, _ := w.startIn(known)
	one := tenant(w.tcx63("eth0", 31), "zone", "one", 1, 500)
	two := tenant(w.tcx63("eth0", 31), "zone", "two", 2, 500)
	w.must(a, one, two)
	if links := linksOf(a); len(links) != 2 {
		t.Errorf("links: %v", links)
	}
	err := w.accept(a, tenant(w.tcx63("eth0", 1), "zone", "more", 3, 500))
	if err == nil || !strings.Contains(err.Error(), "place programs on tcx/ingress of eth0 in pod p: programs: it takes 1, namespace zone holds 31") {
		t.Errorf("the third one is told %v", err)
	}
}

// TestPinsOfBeforeHaveNoText: a chain whose link was pinned without a note of its interface is
// adopted.
func TestPinsOfBeforeHaveNoText(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "sk0", "sk1")
	a, stop := w.start()
	w.must(a, w.intent("counter", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: on("xdp", "sk0")}))
	before := linksOf(a)
	stop()
	pin := filepath.Join(w.bpffs, "+xdp", fmt.Sprint(index(t, "sk0")), "link")
	if _, err := os.Stat(pin); err != nil {
		t.Fatal(err)
	}
	must(t, os.Remove(pin+"+at"))
	a, _ = w.start()
	w.must(a)
	if diff := gocmp.Diff(before, linksOf(a)); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
}
