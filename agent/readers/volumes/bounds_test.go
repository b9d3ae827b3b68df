package volumes_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/volumes"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestHowManyVolumesANamespaceHas(t *testing.T) {
	for sentence, c := range map[string]struct {
		bounds   volumes.Bounds
		has, all int
		want     string
	}{
		"the last of a namespace":               {volumes.Bounds{}, 63, 63, ""},
		"one too many of a namespace":           {volumes.Bounds{}, 64, 64, "pods of namespace web have 64 on this node, and no more are allowed; delete pods"},
		"the last but what is for others":       {volumes.Bounds{Node: 100}, 4, 74, ""},
		"what is for others":                    {volumes.Bounds{Node: 100}, 4, 75, "and all pods 75 of 100, of which the last 25 are for namespaces"},
		"what is for others, of another":        {volumes.Bounds{Node: 100}, 3, 99, ""},
		"one too many of all, of another":       {volumes.Bounds{Node: 100}, 0, 100, "all pods 100 of 100"},
		"more than there may be, after a start": {volumes.Bounds{Node: 100}, 0, 120, "all pods 120 of 100"},
	} {
		t.Run(sentence, func(t *testing.T) {
			err := c.bounds.Check("web", c.has, c.all)
			if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, volumes.ErrTooMany) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("it says %v, want %q", err, c.want)
			}
		})
	}
}

// TestNoNamespaceTakesAllVolumes mounts them until there are no more for it.
func TestNoNamespaceTakesAllVolumes(t *testing.T) {
	n := newNode(t)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"), to(v1alpha1.MapRead, "shop"))))
	var all []volumes.Request
	for range 64 {
		all = append(all, n.mounts(n.ofCluster("web", "reader")))
	}
	more := n.ofCluster("web", "reader")
	if err := n.agent.Volumes().Mount(t.Context(), more); !errors.Is(err, volumes.ErrTooMany) || !n.isEmpty(more) {
		t.Errorf("one more is mounted: %v", err)
	}
	n.mounts(n.ofCluster("shop", "reader"))
	// The kubelet asks again for what is mounted, and another is unmounted.
	n.mounts(all[0])
	world.Must(t, n.agent.Volumes().Unmount(t.Context(), all[1].At))
	n.mounts(more)
}

// gate stands before a mounter, and leaves requests without an answer.
type gate struct {
	n      *node
	behind string
	mu     sync.Mutex
	// held are the connections that wait, by the pod of a volume; nil for others.
	held map[string]chan struct{}
	work sync.WaitGroup
}

// newGate has requests of the agent come through a gate.
func newGate(n *node) *gate {
	n.t.Helper()
	n.stopMounter()
	front := n.socket
	n.socket = filepath.Join(n.t.TempDir(), "mounter", "socket")
	n.startMounter()
	g := &gate{n: n, behind: n.socket, held: map[string]chan struct{}{}}
	n.socket = front
	l := n.hangMounter()
	g.work.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			g.work.Go(func() { g.pass(c) })
		}
	})
	n.t.Cleanup(func() { _ = l.Close(); g.work.Wait() })
	return g
}

// hold has requests for a volume wait until the function that it returns, which closes their connections.
func (g *gate) hold(r volumes.Request) (end func()) {
	ended := make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held[r.At.Pod] = ended
	end = sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.held, r.At.Pod)
		close(ended)
	})
	g.n.t.Cleanup(end)
	return end
}

// pass passes a request and its answer on.
func (g *gate) pass(from *net.UnixConn) {
	defer func() { _ = from.Close() }()
	body, rights := make([]byte, 128<<10), make([]byte, unix.CmsgSpace(4))
	k, _, _, _, err := from.ReadMsgUnix(body, nil)
	var r mounter.Volume
	if err != nil || json.Unmarshal(body[:k], &r) != nil {
		return
	}
	g.mu.Lock()
	held := g.held[r.Pod]
	g.mu.Unlock()
	if held != nil {
		<-held
		return
	}
	to, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: g.behind, Net: "unixpacket"})
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	if _, err := to.Write(body[:k]); err != nil {
		return
	}
	k, m, _, _, err := to.ReadMsgUnix(body, rights)
	if err != nil {
		return
	}
	_, _, _ = from.WriteMsgUnix(body[:k], rights[:m], nil)
	passed, _ := unix.ParseSocketControlMessage(rights[:m])
	for i := range passed {
		all, _ := unix.ParseUnixRights(&passed[i])
		for _, fd := range all {
			_ = unix.Close(fd)
		}
	}
}

// TestNoVolumeWaitsForTheMounterOfAnother has the mounter answer nothing for one volume that comes, and for one that loses a grant.
func TestNoVolumeWaitsForTheMounterOfAnother(t *testing.T) {
	n := newNode(t)
	g := newGate(n)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"), to(v1alpha1.MapRead, "shop"))))
	slow, other := n.mounts(n.ofCluster("web", "slow")), n.mounts(n.ofCluster("web", "other"))
	end, coming := g.hold(slow), n.ofCluster("shop", "reader")
	endMount, mounted := g.hold(coming), make(chan error, 1)
	go func() { mounted <- n.agent.Volumes().Mount(t.Context(), coming) }()
	world.Until(t, "a mount to wait", time.Minute, func() bool { return n.agent.Volumes().Asking() == 1 })
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "shop"))))
	// A request to the mounter waits up to 20 seconds.
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	for _, r := range []volumes.Request{slow, other} {
		world.Until(t, "the socket of "+r.At.String()+" to end the grant", 15*time.Second, func() bool { _, err := n.answers(r); return err != nil })
	}
	world.Until(t, "the other volume to list nothing", 15*time.Second, func() bool { return n.listing(other).Maps["counts"].Access == "" })
	added := n.ofCluster("shop", "reader")
	world.Must(t, n.agent.Volumes().Mount(ctx, added))
	world.Must(t, n.agent.Volumes().Unmount(ctx, added.At))
	if n.listing(slow).Maps["counts"].Access != skepmap.Read {
		t.Error("the slow volume was not slow: nothing was tested")
	}
	if len(mounted) > 0 {
		t.Errorf("the mount was not slow: nothing was tested: %v", <-mounted)
	}
	end()
	endMount()
	n.lists(slow, "")
	if err := <-mounted; err == nil {
		t.Error("it is mounted without an answer")
	}
}

// TestAWithdrawalWaitsForNoMount has volumes that come, whose mounts take long, fill all places of requests to the mounter but those of
// withdrawals.
func TestAWithdrawalWaitsForNoMount(t *testing.T) {
	n := newNode(t)
	g := newGate(n)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"), to(v1alpha1.MapRead, "shop"))))
	r := n.mounts(n.ofCluster("web", "reader"))
	ctx, cancel := context.WithCancel(t.Context())
	var asked sync.WaitGroup
	for range 16 {
		one := n.ofCluster("shop", "reader")
		g.hold(one)
		asked.Go(func() { _ = n.agent.Volumes().Mount(ctx, one) })
	}
	world.Until(t, "mounts to fill their places", time.Minute, func() bool { return n.agent.Volumes().Asking() == 8 })
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "shop"))))
	world.Until(t, "the volume to list nothing", 15*time.Second, func() bool { return n.listing(r).Maps["counts"].Access == "" })
	if n.agent.Volumes().Asking() != 8 {
		t.Error("mounts have ended: nothing was tested")
	}
	cancel()
	asked.Wait()
}

// TestTypesOfTwoVersionsFitAVolume: those of a new version are there before those of the former go.
func TestTypesOfTwoVersionsFitAVolume(t *testing.T) {
	need.Kernel(t)
	dir := t.TempDir()
	world.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1048576,nr_inodes=1024"))
	t.Cleanup(func() { world.Must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	for _, bytes := range []int{100, 5000, 100 << 10} {
		for _, version := range []string{"first", "second"} {
			if n, err := volumes.WriteTypes(dir, version, 64, bytes); err != nil || n == 0 {
				t.Errorf("%d bytes of types of each map of the %s version: %d are written, %v", bytes, version, n, err)
			}
		}
	}
}
