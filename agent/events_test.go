package agent_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// isChild is the environment variable of a process that does what hooks see.
const isChild = "SKEP_TEST_CHILD"

// runsOn causes what a hook sees until the program ran, and fails the test if it does not.
// The program leaves its version.
func runsOn(t *testing.T, a *agent.Agent, at v1alpha1.Attachment, version uint32) {
	t.Helper()
	h, _ := hook.Lookup(at.Hook)
	until(t, "the program to run on "+h.Name, 20*time.Second, func() bool {
		cause(t, a, h, at)
		return lastRun(t, a) == version
	})
}

// cause causes what the hook sees.
func cause(t *testing.T, a *agent.Agent, h hook.Hook, at v1alpha1.Attachment) {
	t.Helper()
	switch {
	case h.Shape == hook.NetworkDevice:
		sendUnknownFrame(t, "hk0")
		sendUnknownFrame(t, "hk1")
	case h.Shape == hook.Cgroup:
		runInCgroup(t, filepath.Join(cgroupRoot(t), at.Cgroup))
	case h.Shape == hook.UserBinary:
		// What it does and how it ends is of no interest.
		cmd := exec.CommandContext(t.Context(), at.Binary.Path, "-test.run=^TestWhatIsProbed$")
		cmd.Env = append(os.Environ(), isChild+"=1")
		_ = cmd.Run()
	case at.NetworkNamespace != "":
		within(t, at.NetworkNamespace, func() error {
			err := errors.Join(loopbackUp(), sendFrame(1))
			dial(t, "udp4", "127.0.0.1:9")
			return err
		})
	case h.Shape == hook.NetworkNamespace:
		if err := loopbackUp(); err != nil {
			t.Fatal(err)
		}
		dial(t, "udp4", "127.0.0.1:9")
	case h.Name == "raw_tp.w":
		if err := testRun(t); err != nil {
			t.Fatal(err)
		}
	case h.Name == "iter":
		_, l := one(t, a)
		if _, err := os.ReadFile(l.Pin); err != nil {
			t.Fatal(err)
		}
	default:
		if _, err := unix.Getpgid(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
}

// sendUnknownFrame sends an Ethernet frame that nobody knows.
func sendUnknownFrame(t *testing.T, iface string) {
	t.Helper()
	l, err := netlink.LinkByName(iface)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	frame := make([]byte, 64)
	copy(frame, bytes.Repeat([]byte{0xff}, 6))
	frame[12], frame[13] = 0x88, 0xb5
	err = unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Halen: 6})
	if err != nil && !errors.Is(err, unix.ENETDOWN) && !errors.Is(err, unix.ENOBUFS) {
		t.Fatal(err)
	}
}

// dial sends a byte to an address, or fails to; both are seen.
func dial(t *testing.T, network, address string) {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), network, address)
	if err != nil {
		return
	}
	_, _ = conn.Write([]byte{1})
	_ = conn.Close()
}

// runInCgroup has a process do in a cgroup what its hooks see.
func runInCgroup(t *testing.T, dir string) {
	t.Helper()
	cgroup, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cgroup.Close() }()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestWhatHooksOfACgroupSee$", "-test.timeout=10s")
	cmd.Env = append(os.Environ(), isChild+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("run in cgroup %s: %v: %s", dir, err, out)
	}
}

// TestWhatHooksOfACgroupSee is no test by itself: it does what every hook of a cgroup
// sees, in the cgroup that it is started in.
func TestWhatHooksOfACgroupSee(t *testing.T) {
	if os.Getenv(isChild) == "" {
		t.Skip("it is run by other tests, in a cgroup")
	}
	// Other tests do without IPv6.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6", []byte("0"), 0); err != nil {
		t.Log(err)
	}
	if err := loopbackUp(); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		talkUDP(t, address)
		talkTCP(t, address)
	}
	talkUnix(t)
	for _, name := range []string{"/dev/null", "/proc/sys/kernel/hostname"} {
		if _, err := os.ReadFile(name); err != nil {
			t.Error(err)
		}
	}
}

// TestWhatIsProbed is no test by itself: it runs the function that hooks of a binary see.
func TestWhatIsProbed(t *testing.T) {
	if os.Getenv(isChild) == "" {
		t.Skip("it is run by other tests")
	}
	probedFunction()
}

// probedFunction calls nothing, so that its stack stays where it is while it runs.
//
//go:noinline
func probedFunction() { probedTimes++ }

var probedTimes int

// talkUDP sends a datagram to itself, connected and not.
func talkUDP(t *testing.T, address string) {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", address)
	if err != nil {
		t.Log(err)
		return
	}
	defer func() { _ = conn.Close() }()
	dial(t, "udp", conn.LocalAddr().String())
	if _, err := conn.WriteTo([]byte{1}, conn.LocalAddr()); err != nil {
		t.Log(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	_, _, _ = conn.ReadFrom(make([]byte, 1))
}

// talkTCP connects to itself and asks for names and options.
func talkTCP(t *testing.T, address string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Log(err)
		return
	}
	defer func() { _ = l.Close() }()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Log(err)
		return
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		_, _ = unix.Getpeername(int(fd))
		_, _ = unix.Getsockname(int(fd))
		_, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<16)
	})
	if err != nil {
		t.Error(err)
	}
}

// talkUnix does with sockets of the file system what hooks of those see.
func talkUnix(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "s"+strconv.Itoa(os.Getpid())) //nolint:usetesting // a socket's path has at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		_, _ = unix.Getpeername(int(fd))
		_, _ = unix.Getsockname(int(fd))
	})
	if err != nil {
		t.Error(err)
	}
	packets, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "unixgram", filepath.Join(dir, "p"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = packets.Close() }()
	if _, err := packets.WriteTo([]byte{1}, packets.LocalAddr()); err != nil {
		t.Error(err)
	}
	if _, _, err := packets.ReadFrom(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}
