package volumes_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	n := newNodeWith(t, true)
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

// losesAnswer has the mounter do what the next request asks for, and loses the answer. Until the function that it returns, nothing else is done.
func (n *node) losesAnswer() (done func()) {
	n.t.Helper()
	n.stopMounter()
	l := n.hangMounter()
	behind := n.socket
	n.socket = filepath.Join(n.t.TempDir(), "mounter", "socket")
	n.startMounter()
	n.socket, behind = behind, n.socket
	lost := make(chan error, 1)
	go func() { lost <- relay(l, behind) }()
	return func() {
		n.t.Helper()
		world.Must(n.t, errors.Join(<-lost, l.Close()))
		n.stopMounter()
		n.startMounter()
	}
}

// relay passes a request on to another socket, and closes its connection once there is an answer.
func relay(l *net.UnixListener, to string) error {
	from, err := l.AcceptUnix()
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	body, rights := make([]byte, 128<<10), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := from.ReadMsgUnix(body, rights)
	if err != nil {
		return err
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: to, Net: "unixpacket"})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	passed, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil {
		return err
	}
	if _, _, err := c.WriteMsgUnix(body[:n], rights[:m], nil); err != nil {
		return err
	}
	for i := range passed {
		all, err := unix.ParseUnixRights(&passed[i])
		for _, fd := range all {
			err = errors.Join(err, unix.Close(fd))
		}
		if err != nil {
			return err
		}
	}
	// Its descriptors are left out.
	_, err = c.Read(body)
	return err
}

// TestAMountWhoseAnswerIsLostLeavesNothing ends the grant before the kubelet asks again.
func TestAMountWhoseAnswerIsLostLeavesNothing(t *testing.T) {
	n := newNode(t)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	r, done := n.ofCluster("web", "reader"), n.losesAnswer()
	if err := n.agent.Volumes().Mount(t.Context(), r); err == nil {
		t.Fatal("it is mounted without an answer")
	}
	done()
	if n.isEmpty(r) {
		t.Fatal("nothing is mounted")
	}
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "shop"))))
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

// TestALeaseOfAFileHoldsNothingUp: root of a pod owns the files of its volume, and so may have the kernel keep who opens one waiting for
// 45 seconds, each.
func TestALeaseOfAFileHoldsNothingUp(t *testing.T) {
	n := newNode(t)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	r := n.mounts(n.ofCluster("web", "reader"))
	file, err := os.Open(n.path(r, skepmap.ListingFile))
	world.Must(t, err)
	defer func() { _ = file.Close() }()
	lease := func(command, to int) int {
		kind, err := unix.FcntlInt(file.Fd(), command, to)
		world.Must(t, err)
		return kind
	}
	lease(unix.F_SETLEASE, unix.F_WRLCK)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count_v3", to(v1alpha1.MapRead, "web"))))
	world.Until(t, "the agent to open the file", time.Minute, func() bool { return lease(unix.F_GETLEASE, 0) != unix.F_WRLCK })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	world.Must(t, n.agent.Volumes().Unmount(ctx, r.At))
}
