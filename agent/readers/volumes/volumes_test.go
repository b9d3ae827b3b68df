package volumes_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/volumes"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/skepmap/protocol"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/reader"
)

func TestMain(m *testing.M) {
	reader.MaybeChild()
	maybeChild()
	maybeUser()
	leaks.Main(m)
}

// node is a world with a mounter, and a kubelet's folder of pods.
type node struct {
	*world.World
	t            *testing.T
	pods, socket string
	// pins is whether volumes have any.
	pins        bool
	stopMounter func()
	agent       *agent.Agent
	stopAgent   func()
	next        int
}

func newNode(t *testing.T) *node {
	t.Helper()
	return newNodeWith(t, false)
}

// newNodeWith is newNode, whose volumes have pins or not.
func newNodeWith(t *testing.T, pins bool) *node {
	t.Helper()
	need.Kernel(t)
	dir := t.TempDir()
	n := &node{World: world.New(t), t: t, pins: pins, pods: filepath.Join(dir, "pods"), socket: filepath.Join(dir, "mounter", "socket")}
	world.Must(t, errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.Mkdir(n.pods, 0o755), unix.Mount(n.pods, n.pods, "", unix.MS_BIND, ""),
		unix.Mount("", n.pods, "", unix.MS_SHARED, "")))
	t.Cleanup(func() {
		for unix.Unmount(n.pods, unix.MNT_DETACH) == nil {
		}
	})
	world.Veth(t, "rd0", "rd1")
	n.startMounter()
	n.startAgent()
	return n
}

// startMounter starts the mounter.
func (n *node) startMounter() {
	n.t.Helper()
	n.answerMounter(n.hangMounter())
}

// hangMounter has requests to the mounter wait.
func (n *node) hangMounter() *net.UnixListener {
	n.t.Helper()
	l, err := mounter.Listen(n.socket)
	world.Must(n.t, err)
	return l
}

// answerMounter answers the requests that wait, and those that come.
func (n *node) answerMounter(l *net.UnixListener) {
	n.t.Helper()
	s, err := mounter.New(mounter.Options{Pods: n.pods, Scratch: filepath.Join(filepath.Dir(n.socket), "scratch"), Pins: n.pins})
	world.Must(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	ended := false
	n.stopMounter = func() {
		if !ended {
			ended = true
			cancel()
			world.Must(n.t, errors.Join(<-done, s.Close()))
		}
	}
	n.t.Cleanup(n.stopMounter)
}

// startAgent starts the agent, which looks after volumes.
func (n *node) startAgent() {
	n.t.Helper()
	o := n.Options()
	o.Node, o.Mounter, o.VolumePins = "node1", n.socket, n.pins
	a, err := agent.New(o)
	world.Must(n.t, err)
	stop := n.Serve(a)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { a.Volumes().Run(ctx); close(done) }()
	n.agent, n.stopAgent = a, func() { cancel(); <-done; stop() }
	n.t.Cleanup(n.stopAgent)
}

// export has an application grant its map counts.
func export(p intent.Payload, grants ...v1alpha1.MapExport) intent.Payload {
	m := p.Maps["counts"]
	m.Export = grants
	p.Maps = map[string]v1alpha1.Map{"counts": m}
	return p
}

// to is a grant to pods of a namespace, as some service accounts or all.
func to(access v1alpha1.MapAccess, namespace string, accounts ...string) v1alpha1.MapExport {
	return v1alpha1.MapExport{Access: access, Namespaces: []string{namespace}, ServiceAccounts: accounts}
}

// counter is an application of the cluster, in a version of its object.
func (n *node) counter(object string, grants ...v1alpha1.MapExport) intent.Payload {
	return export(n.Intent("counter", object, v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rd0")}), grants...)
}

// pod is a request of a pod of its own: of a namespace, as a service account, for an application.
func (n *node) pod(namespace, account, kind, name string) volumes.Request {
	n.t.Helper()
	n.next++
	r := volumes.Request{
		Claim: volumes.Claim{Namespace: namespace, Pod: "pod", ServiceAccount: account, Application: v1alpha1.Identity{Kind: kind, Name: name}},
		At:    mounter.Volume{Pod: fmt.Sprintf("%08x-1f0e-4f5c-9d2e-0a1b2c3d4e5f", n.next), Name: "maps"}, Group: reader.ID,
	}
	if kind == v1alpha1.KindBpfApplication {
		r.Application.Namespace = namespace
	}
	world.Must(n.t, os.MkdirAll(filepath.Dir(n.path(r)), 0o755))
	return r
}

// ofCluster is a pod that asks for the counter.
func (n *node) ofCluster(namespace, account string) volumes.Request {
	n.t.Helper()
	return n.pod(namespace, account, v1alpha1.KindClusterBpfApplication, "counter")
}

// path is a path in the volume of a pod.
func (n *node) path(r volumes.Request, names ...string) string {
	return filepath.Join(n.pods, r.At.Pod, "volumes/kubernetes.io~csi", r.At.Name, "mount", filepath.Join(names...))
}

// mounts mounts a volume.
func (n *node) mounts(r volumes.Request) volumes.Request {
	n.t.Helper()
	world.Must(n.t, n.agent.Volumes().Mount(n.t.Context(), r))
	return r
}

// listing is that of a volume.
func (n *node) listing(r volumes.Request) skepmap.Listing {
	n.t.Helper()
	l, err := skepmap.ReadListing(n.path(r))
	world.Must(n.t, err)
	return l
}

// lists waits until a volume lists the map with an access, or does not list it.
func (n *node) lists(r volumes.Request, access skepmap.Access) {
	n.t.Helper()
	world.Until(n.t, fmt.Sprintf("%s to list the map for %q", r.At, access), time.Minute, func() bool {
		return n.listing(r).Maps["counts"].Access == access
	})
}

// reads is what a reader of a volume is answered.
func (n *node) reads(r volumes.Request) (open, write string) {
	n.t.Helper()
	// What the kubelet keeps for itself is open to readers of the test.
	for dir := filepath.Dir(n.path(r)); len(dir) >= len(n.pods); dir = filepath.Dir(dir) {
		world.Must(n.t, os.Chmod(dir, 0o755))
	}
	a := reader.Open(n.t, n.path(r, "counts"), 0)
	return a.Open, a.OpenWrite
}

// answers is what the socket of a volume answers to a look-up, as an error or as bytes.
func (n *node) answers(r volumes.Request) (protocol.Response, error) {
	n.t.Helper()
	c, err := protocol.Dial(n.t.Context(), n.path(r, skepmap.SocketFile))
	if err != nil {
		return protocol.Response{}, err
	}
	defer func() { _ = c.Close() }()
	return c.Do(n.t.Context(), protocol.Request{Op: protocol.Get, Map: "counts", Key: make([]byte, 4)})
}

// mapID is the number of the map in a volume.
func (n *node) mapID(r volumes.Request) ebpf.MapID {
	n.t.Helper()
	m, err := ebpf.LoadPinnedMap(n.path(r, "counts"), &ebpf.LoadPinOptions{ReadOnly: true})
	world.Must(n.t, err)
	defer func() { _ = m.Close() }()
	info, err := m.Info()
	world.Must(n.t, err)
	id, _ := info.ID()
	return id
}

// isEmpty reports whether nothing is mounted for a pod.
func (n *node) isEmpty(r volumes.Request) bool {
	all, err := os.ReadFile("/proc/self/mountinfo")
	return err == nil && !strings.Contains(string(all), n.path(r))
}

func TestEachPodGetsTheMapsThatItWasGranted(t *testing.T) {
	n := newNodeWith(t, true)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web", "reader"), to(v1alpha1.MapWrite, "shop"))))
	reads, writes := n.mounts(n.ofCluster("web", "reader")), n.mounts(n.ofCluster("shop", "any"))
	for _, c := range []struct {
		of          volumes.Request
		open, write string
		access      skepmap.Access
	}{{reads, "", "EROFS", skepmap.Read}, {writes, "", "", skepmap.Write}} {
		if open, write := n.reads(c.of); open != c.open || write != c.write {
			t.Errorf("%s: opening is answered by %q, and for writing by %q", c.of.Namespace, open, write)
		}
		l := n.listing(c.of)
		if diff := cmp.Diff(skepmap.Application{Kind: v1alpha1.KindClusterBpfApplication, Name: "counter"}, l.Application); diff != "" {
			t.Error(diff)
		}
		if m := l.Maps["counts"]; l.Generation != 1 || m.Generation != 1 || m.Access != c.access || m.Group != "" || m.Type != "PerCPUArray" || m.ValueTypeID == 0 {
			t.Errorf("it is listed as %+v", l)
		}
		if _, err := os.Stat(n.path(c.of, "counts.btf")); err != nil {
			t.Error(err)
		}
		if r, err := n.answers(c.of); err != nil || len(r.Value) == 0 {
			t.Errorf("the socket answers %+v, %v", r, err)
		}
	}
	for _, r := range []volumes.Request{reads, writes} {
		world.Must(t, n.agent.Volumes().Unmount(t.Context(), r.At))
		if !n.isEmpty(r) {
			t.Error("something is mounted still")
		}
	}
}

func TestWhoIsNotGrantedAMapGetsNoVolume(t *testing.T) {
	n := newNode(t)
	own := world.Tenant(n.Intent("own", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "rd0")}), "web", "own", 1, 1)
	// The grant of an application of a namespace to another namespace is none.
	own = export(own, v1alpha1.MapExport{Access: v1alpha1.MapRead, Namespaces: []string{"web", "shop"}, ServiceAccounts: []string{"reader"}})
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web", "reader")), own))
	const ofCluster = v1alpha1.KindClusterBpfApplication
	for sentence, c := range map[string]struct {
		namespace, account, kind, name string
		want                           error
		says                           string
	}{
		"another namespace":                   {"shop", "reader", ofCluster, "counter", volumes.ErrNotGranted, `service account "reader" of namespace "shop"`},
		"another service account":             {"web", "default", ofCluster, "counter", volumes.ErrNotGranted, `service account "default"`},
		"another service account of its own":  {"web", "default", v1alpha1.KindBpfApplication, "own", volumes.ErrNotGranted, "BpfApplication web/own"},
		"another namespace's application":     {"shop", "reader", v1alpha1.KindBpfApplication, "own", volumes.ErrNotThere, "BpfApplication shop/own"},
		"a namespace's as one of the cluster": {"web", "reader", ofCluster, "own", volumes.ErrNotThere, "ClusterBpfApplication own"},
		"no application":                      {"web", "reader", ofCluster, "absent", volumes.ErrNotThere, "has no intent"},
	} {
		t.Run(sentence, func(t *testing.T) {
			r := n.pod(c.namespace, c.account, c.kind, c.name)
			// Nothing comes: there is no need to wait.
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			err := n.agent.Volumes().Mount(ctx, r)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("it says %v, want %v with %q", err, c.want, c.says)
			}
			if !n.isEmpty(r) {
				t.Error("something is mounted")
			}
		})
	}
	n.mounts(n.pod("web", "reader", v1alpha1.KindBpfApplication, "own"))
}

// TestAMountWaitsForTheProgram asks before the intent comes.
func TestAMountWaitsForTheProgram(t *testing.T) {
	n := newNode(t)
	r := n.ofCluster("web", "reader")
	done := make(chan error)
	go func() { done <- n.agent.Volumes().Mount(t.Context(), r) }()
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	world.Must(t, <-done)
	n.lists(r, skepmap.Read)
}

func TestAVolumeFollowsItsGrant(t *testing.T) {
	n := newNodeWith(t, true)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	r, other := n.mounts(n.ofCluster("web", "reader")), n.mounts(n.ofCluster("web", "other"))
	first := n.listing(r)
	inode := func() uint64 {
		var st unix.Stat_t
		world.Must(t, unix.Stat(n.path(r, "counts"), &st))
		return st.Ino
	}
	pin, id := inode(), n.mapID(r)

	// A version that keeps the map keeps the pin.
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count_v2", to(v1alpha1.MapRead, "web"))))
	world.Until(t, "the new version to be listed", time.Minute, func() bool { return n.listing(r).Digest != first.Digest })
	if now := n.listing(r); inode() != pin || now.Generation != 1 || now.Maps["counts"].Generation != 1 {
		t.Errorf("the map is another one: %+v", now)
	}

	// Another layout makes another map.
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count_v3", to(v1alpha1.MapRead, "web"))))
	world.Until(t, "the new map", time.Minute, func() bool { return n.listing(r).Maps["counts"].Generation == 2 })
	if n.mapID(r) == id || inode() == pin || n.listing(r).Generation != 2 {
		t.Error("the former map is pinned")
	}
	if k := n.agent.Volumes(); k.IsLoaded(id) || !k.IsLoaded(n.mapID(r)) {
		t.Error("the former map counts as loaded, or the map does not")
	}
	if open, write := n.reads(r); open != "" || write != "EROFS" {
		t.Errorf("opening is answered by %q, and for writing by %q", open, write)
	}

	// A grant is edited while it is mounted: for one pod it gets wider, and for the other it ends.
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count_v3", to(v1alpha1.MapWrite, "web", "reader"))))
	n.lists(r, skepmap.Write)
	n.lists(other, "")
	if open, write := n.reads(r); open != "" || write != "" {
		t.Errorf("opening is answered by %q, and for writing by %q", open, write)
	}
	if left, err := os.ReadDir(n.path(other, mounter.ReadOnly)); err != nil || len(left) > 0 {
		t.Errorf("there are pins: %v, %v", left, err)
	}
	if _, err := n.answers(other); err == nil {
		t.Error("the socket answers for a map that is not granted any more")
	}

	// What mounts for the first time is not granted it, and what runs with the volume keeps that.
	if err := n.agent.Volumes().Mount(t.Context(), n.ofCluster("web", "other")); !errors.Is(err, volumes.ErrNotGranted) {
		t.Errorf("a new pod: %v", err)
	}
	n.mounts(other)

	// The application goes, and the volume stays.
	world.Must(t, n.Accept(n.agent, n.Tombstone(n.counter("xdp_count_v3"))))
	n.lists(r, "")
	if n.isEmpty(r) {
		t.Error("the volume is gone")
	}
	n.hasFiles(r, ".maps maps maps.json maps@write socket")
}

// TestAGrantEndsBeforeAnythingThatTakesLong takes a grant back by a version whose load takes the verifier seconds.
func TestAGrantEndsBeforeAnythingThatTakesLong(t *testing.T) {
	n := newNode(t)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	r := n.mounts(n.ofCluster("web", "reader"))
	var slow []v1alpha1.Program
	first := world.StatusOf(n.agent, "counter").Revision
	for i := range 8 {
		slow = append(slow, v1alpha1.Program{Name: fmt.Sprint("slow_", i+1), Attach: []v1alpha1.Attachment{{Hook: "raw_tp", Tracepoint: "xdp_exception"}}})
	}
	n.Give(n.agent, n.Intent("counter", "raw_tp_slow", slow...))
	n.lists(r, "")
	if s := world.StatusOf(n.agent, "counter"); s.Revision != first {
		t.Errorf("the load has ended: %+v", s.Conditions)
	}
}

func TestAnAgentFindsItsVolumesAgain(t *testing.T) {
	n := newNodeWith(t, true)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	r := n.mounts(n.ofCluster("web", "reader"))
	var before, after unix.Stat_t
	world.Must(t, unix.Stat(n.path(r, "counts"), &before))
	n.stopAgent()
	n.startAgent()
	world.Looks(t, n.agent)
	world.Until(t, "the socket to answer again", time.Minute, func() bool { _, err := n.answers(r); return err == nil })
	world.Must(t, unix.Stat(n.path(r, "counts"), &after))
	if before.Ino != after.Ino || n.listing(r).Generation != 1 {
		t.Errorf("the pin was made again: %+v", n.listing(r))
	}

	// A grant that ends, and a map that is replaced, while the agent is away.
	n.stopMounter()
	n.startMounter()
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count_v3", to(v1alpha1.MapRead, "web"))))
	world.Until(t, "the new map", time.Minute, func() bool { return n.listing(r).Maps["counts"].Generation == 2 })
	n.stopAgent()
	n.startAgent()
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count_v3", to(v1alpha1.MapRead, "shop"))))
	n.lists(r, "")
}

// TestAGrantThatEndsWhileTheMounterIsAway ends on the socket at once, and with its pin when the mounter is back.
func TestAGrantThatEndsWhileTheMounterIsAway(t *testing.T) {
	n := newNodeWith(t, true)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	r := n.mounts(n.ofCluster("web", "reader"))
	n.stopMounter()
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "shop"))))
	world.Until(t, "the socket to end it", time.Minute, func() bool { _, err := n.answers(r); return err != nil })
	if open, _ := n.reads(r); open != "" {
		t.Errorf("the pin went without the mounter: %s", open)
	}
	if current, behind := n.agent.Volumes().Count(); current != 0 || behind != 1 {
		t.Errorf("%d volumes have what they should, and %d do not", current, behind)
	}
	n.startMounter()
	n.lists(r, "")
	world.Until(t, "it to have what it should", time.Minute, func() bool { current, _ := n.agent.Volumes().Count(); return current == 1 })
}

// TestVolumesHaveNoPinsByDefault has an older agent's volume, with pins, and one that is mounted without.
func TestVolumesHaveNoPinsByDefault(t *testing.T) {
	n := newNodeWith(t, true)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	older := n.mounts(n.ofCluster("web", "reader"))
	n.hasFiles(older, ".maps counts counts.btf maps maps.json maps@write socket")
	n.stopAgent()
	n.stopMounter()
	n.pins = false
	n.startMounter()
	n.startAgent()
	world.Looks(t, n.agent)
	newer := n.mounts(n.ofCluster("web", "reader"))
	for _, r := range []volumes.Request{older, newer} {
		world.Until(t, "the socket to answer", time.Minute, func() bool { a, err := n.answers(r); return err == nil && len(a.Value) > 0 })
		n.hasFiles(r, ".maps counts.btf maps.json socket")
		if all, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Count(string(all), n.path(r)) != 1 {
			t.Errorf("it has more mounts than one: %v\n%s", err, all)
		}
		if l := n.listing(r); l.Generation != 1 || l.Maps["counts"].Access != skepmap.Read {
			t.Errorf("it lists %+v", l)
		}
	}
	// With pins again, what is mounted gets none, and is followed nevertheless.
	n.stopAgent()
	n.stopMounter()
	n.pins = true
	n.startMounter()
	n.startAgent()
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapWrite, "web"))))
	n.lists(older, skepmap.Write)
	n.hasFiles(older, ".maps counts.btf maps.json socket")
}

// hasFiles waits until a volume has these files and no others.
func (n *node) hasFiles(r volumes.Request, want string) {
	n.t.Helper()
	world.Until(n.t, fmt.Sprintf("%s to have %s", r.At, want), time.Minute, func() bool {
		list, err := os.ReadDir(n.path(r))
		var names []string
		for _, one := range list {
			names = append(names, one.Name())
		}
		return err == nil && strings.Join(names, " ") == want
	})
}
