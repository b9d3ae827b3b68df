package agent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/volumes"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/skepmap/protocol"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestAGrantThatEndedBeforeAStartNeedsNoLook takes a grant back while the agent is away. The next agent cannot look at the kernel.
func TestAGrantThatEndedBeforeAStartNeedsNoLook(t *testing.T) {
	need.Kernel(t)
	w, pods := world.New(t), t.TempDir()
	world.Veth(t, "vo0", "vo1")
	world.Must(t, errors.Join(unix.Mount(pods, pods, "", unix.MS_BIND, ""), unix.Mount("", pods, "", unix.MS_SHARED, "")))
	t.Cleanup(func() {
		for unix.Unmount(pods, unix.MNT_DETACH) == nil {
		}
	})
	socket := filepath.Join(t.TempDir(), "mounter", "socket")
	serveMounter(t, socket, pods)
	counter := func(namespaces ...string) intent.Payload {
		p := w.Intent("counter", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "vo0")})
		p.Maps = map[string]v1alpha1.Map{"counts": {Export: []v1alpha1.MapExport{{Access: v1alpha1.MapRead, Namespaces: namespaces}}}}
		return p
	}
	start := func(failing error) (*agent.Agent, func()) {
		o := w.Options()
		o.Node, o.Mounter, o.VolumePins = "node1", socket, true
		a, err := agent.New(o)
		world.Must(t, err)
		a.FailLooks(failing)
		ctx, cancel := context.WithCancel(t.Context())
		done, stop := make(chan struct{}), w.Serve(a)
		go func() { a.Volumes().Run(ctx); close(done) }()
		return a, func() { cancel(); <-done; stop() }
	}
	a, stop := start(nil)
	world.Must(t, w.Accept(a, counter("web", "shop")))
	in := map[string]string{}
	for namespace, uid := range map[string]string{"web": "00000001-1f0e-4f5c-9d2e-0a1b2c3d4e5f", "shop": "00000002-1f0e-4f5c-9d2e-0a1b2c3d4e5f"} {
		r := volumes.Request{At: mounter.Volume{Pod: uid, Name: "maps"}, Group: 1, Claim: volumes.Claim{Namespace: namespace, Pod: "pod",
			Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "counter"}}}
		in[namespace] = filepath.Join(pods, uid, "volumes/kubernetes.io~csi/maps/mount")
		world.Must(t, os.MkdirAll(filepath.Dir(in[namespace]), 0o755))
		world.Must(t, a.Volumes().Mount(t.Context(), r))
	}
	stop()

	failing := errors.New("the kernel does not answer")
	a, stop = start(failing)
	defer stop()
	w.Give(a, counter("shop"))
	has := func(namespace string) bool {
		_, err := os.Stat(filepath.Join(in[namespace], "maps/counts"))
		return err == nil
	}
	world.Until(t, "the pin that is not granted to go", time.Minute, func() bool { return !has("web") })
	if !has("shop") {
		t.Error("the pin that is granted went")
	}
	if _, err := protocol.Dial(t.Context(), filepath.Join(in["web"], "socket")); err == nil {
		t.Error("a socket is answered before what is loaded is known")
	}
	a.FailLooks(nil)
	a.NamespacesChanged()
	world.Until(t, "the socket of what is granted to answer", time.Minute, func() bool {
		c, err := protocol.Dial(t.Context(), filepath.Join(in["shop"], "socket"))
		if err == nil {
			_, err = c.Do(t.Context(), protocol.Request{Op: protocol.Get, Map: "counts", Key: make([]byte, 4)})
			_ = c.Close()
		}
		return err == nil
	})
	listing, err := os.ReadFile(filepath.Join(in["shop"], "maps.json"))
	if err != nil || !has("shop") || !strings.Contains(string(listing), "counts") {
		t.Errorf("what is granted is not there: %v, %s", err, listing)
	}
}

// serveMounter has a mounter answer on a socket until the test ends.
func serveMounter(t *testing.T, socket, pods string) {
	t.Helper()
	l, err := mounter.Listen(socket)
	world.Must(t, err)
	s, err := mounter.New(mounter.Options{Pods: pods, Scratch: filepath.Join(filepath.Dir(socket), "scratch"), Pins: true})
	world.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		world.Must(t, errors.Join(<-done, s.Close()))
	})
}
