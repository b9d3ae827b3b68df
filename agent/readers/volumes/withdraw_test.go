package volumes_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/readers/volumes"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/test/fixture/world"
)

// TestAMounterThatHangsHoldsUpNoSocket takes grants back while the mounter answers nothing: each volume waits for it as long as it may,
// and all sockets have ended before that.
func TestAMounterThatHangsHoldsUpNoSocket(t *testing.T) {
	n := newNode(t)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	pods := []volumes.Request{n.mounts(n.ofCluster("web", "a")), n.mounts(n.ofCluster("web", "b")), n.mounts(n.ofCluster("web", "c"))}
	n.stopMounter()
	l := n.hangMounter()
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "shop"))))
	for _, r := range pods {
		// One volume's wait for the mounter is 20 seconds.
		world.Until(t, "the socket of "+r.At.String()+" to end it", 15*time.Second, func() bool { _, err := n.answers(r); return err != nil })
	}
	n.answerMounter(l)
	for _, r := range pods {
		n.lists(r, "")
	}
}

// TestAGrantEndsWhereTheObjectCannotBeRead takes the right to write back from what an agent finds that can find out nothing about the map.
func TestAGrantEndsWhereTheObjectCannotBeRead(t *testing.T) {
	n := newNode(t)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapWrite, "web"))))
	r := n.mounts(n.ofCluster("web", "reader"))
	n.stopAgent()
	narrower := n.counter("xdp_count", to(v1alpha1.MapRead, "web"))
	n.Mu.Lock()
	n.Objects = map[string][]byte{}
	n.Mu.Unlock()
	kept, err := filepath.Glob(filepath.Join(n.Dir, "state", "objects", "*"))
	world.Must(t, err)
	for _, path := range kept {
		world.Must(t, os.Remove(path))
	}
	n.startAgent()
	n.Give(n.agent, narrower)
	world.Until(t, "the right to write to end", 15*time.Second, func() bool { return n.listing(r).Maps["counts"].Access != skepmap.Write })
	if open, write := n.reads(r); open == "" && write == "" {
		t.Error("the pin can be opened for writing still")
	}
}

// TestAMountThatWasNotWaitedForLeavesNothing has the mounter do what it was asked for after the caller has given up, and the grant has ended.
func TestAMountThatWasNotWaitedForLeavesNothing(t *testing.T) {
	n := newNode(t)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	n.stopMounter()
	l := n.hangMounter()
	r := n.ofCluster("web", "reader")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := n.agent.Volumes().Mount(ctx, r); err == nil {
		t.Fatal("it is mounted without a mounter")
	}
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "shop"))))
	n.answerMounter(l)
	world.Until(t, "what was asked for", time.Minute, func() bool { return !n.isEmpty(r) })
	if err := n.agent.Volumes().Mount(t.Context(), r); !errors.Is(err, volumes.ErrNotGranted) {
		t.Error(err)
	}
	if !n.isEmpty(r) {
		t.Error("it is mounted")
	}
}

// TestAVolumeThatIsNotUnmountedLosesItsGrant ends a grant after an unmount failed.
func TestAVolumeThatIsNotUnmountedLosesItsGrant(t *testing.T) {
	n := newNode(t)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	r := n.mounts(n.ofCluster("web", "reader"))
	n.stopMounter()
	if err := n.agent.Volumes().Unmount(t.Context(), r.At); err == nil {
		t.Fatal("it is unmounted without a mounter")
	}
	n.startMounter()
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "shop"))))
	n.lists(r, "")
	world.Must(t, n.agent.Volumes().Unmount(t.Context(), r.At))
	if !n.isEmpty(r) {
		t.Error("it is mounted still")
	}
}
