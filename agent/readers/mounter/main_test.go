package mounter_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// pod is the UID of a pod, and other that of another one.
const (
	pod   = "3f8b7c52-1f0e-4f5c-9d2e-0a1b2c3d4e5f"
	other = "00000000-1f0e-4f5c-9d2e-0a1b2c3d4e5f"
)

// maps is the volume of the pod.
var volume = mounter.Volume{Pod: pod, Name: "maps"}

// group is that of readers.
const group = 65532

// node is a kubelet's folder of pods, and a mounter for it.
type node struct {
	testing.TB
	pods string
	// pins is whether volumes have any.
	pins   bool
	server *mounter.Server
	mounter.Client
}

// newNode makes a folder of pods that is shared, as a node's is, and starts a mounter.
func newNode(t testing.TB) *node {
	t.Helper()
	need.Kernel(t)
	n := &node{TB: t, pods: shared(t), pins: true}
	n.makes(volume)
	n.start()
	return n
}

// shared is a folder whose mounts propagate.
func shared(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_SHARED, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// start starts a mounter, which ends with the test or when it is asked to.
func (n *node) start() (stop func()) {
	n.Helper()
	s, err := mounter.New(mounter.Options{Pods: n.pods, Scratch: n.TempDir(), Pins: n.pins})
	if err != nil {
		n.Fatal(err)
	}
	n.server = s
	n.Socket = filepath.Join(n.TempDir(), "mounter", "socket")
	l, err := mounter.Listen(n.Socket)
	if err != nil {
		n.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := errors.Join(<-done, s.Close()); err != nil {
			n.Error(err)
		}
	}
	n.Cleanup(stop)
	return stop
}

// folder is the kubelet's of a volume.
func (n *node) folder(v mounter.Volume) string {
	return filepath.Join(n.pods, v.Pod, "volumes", "kubernetes.io~csi", v.Name)
}

// target is where a volume is mounted.
func (n *node) target(v mounter.Volume) string { return filepath.Join(n.folder(v), "mount") }

// makes makes the folder of a volume, as the kubelet does.
func (n *node) makes(v mounter.Volume) {
	n.Helper()
	if err := os.MkdirAll(n.folder(v), 0o755); err != nil {
		n.Fatal(err)
	}
}

// mounts mounts a volume with pins.
func (n *node) mounts(v mounter.Volume, pins ...mounter.Pin) {
	n.Helper()
	if err := n.tries(v, pins...); err != nil {
		n.Fatal(err)
	}
}

// tries is mounts that may fail.
func (n *node) tries(v mounter.Volume, pins ...mounter.Pin) error {
	dir, err := n.Mount(n.Context(), v, group, []byte("record"), pins)
	if err == nil {
		err = dir.Close()
	}
	return err
}

// updates gives a volume other pins.
func (n *node) updates(pins ...mounter.Pin) {
	n.Helper()
	dir, err := n.Update(n.Context(), volume, pins)
	if err != nil {
		n.Fatal(err)
	}
	if err := dir.Close(); err != nil {
		n.Fatal(err)
	}
}

// unmounts unmounts a volume.
func (n *node) unmounts(v mounter.Volume) {
	n.Helper()
	if err := n.Unmount(n.Context(), v); err != nil {
		n.Fatal(err)
	}
}

// mountpoints are the mounts below the folder of pods, as mountinfo has them.
func (n *node) mountpoints() []string {
	n.Helper()
	all, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(all)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, n.pods+"/") {
			found = append(found, strings.TrimPrefix(at, n.pods+"/"))
		}
	}
	return found
}

// newMap is a map of one entry.
func newMap(t testing.TB) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}
