// Package events causes what hooks see: packets, system calls and sockets. What a program
// makes of them is of no interest here.
package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
)

// isChild is the environment variable of a process that does what hooks of a cgroup see.
const isChild = "SKEP_TEST_EVENTS"

// MaybeChild ends the process where InCgroup started it. It is the first of a TestMain.
func MaybeChild() {
	if os.Getenv(isChild) == "" {
		return
	}
	if err := Talk(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "events:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// InCgroup has a process of a cgroup do what its hooks see.
func InCgroup(t testing.TB, dir string) {
	t.Helper()
	cgroup, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cgroup.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), isChild+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("run in cgroup %s: %v: %s", dir, err, out)
	}
}

// Frame sends an Ethernet frame that nobody knows.
func Frame(t testing.TB, iface string) {
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

// LoopbackUp brings up the loopback device of the thread's network namespace.
func LoopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// Dial sends a byte to an address, or fails to; both are seen.
func Dial(ctx context.Context, network, address string) {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return
	}
	_, _ = conn.Write([]byte{1})
	_ = conn.Close()
}

// Talk does what hooks of a cgroup see: sockets of every kind, devices and sysctls.
func Talk(ctx context.Context) error {
	// Other tests do without IPv6, and so may the machine.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6", []byte("0"), 0)
	errs := []error{LoopbackUp()}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		talkUDP(ctx, address)
		errs = append(errs, talkTCP(ctx, address))
	}
	errs = append(errs, talkUnix(ctx))
	for _, name := range []string{"/dev/null", "/proc/sys/kernel/hostname"} {
		_, err := os.ReadFile(name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// talkUDP sends a datagram to itself, connected and not.
func talkUDP(ctx context.Context, address string) {
	conn, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", address)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	Dial(ctx, "udp", conn.LocalAddr().String())
	_, _ = conn.WriteTo([]byte{1}, conn.LocalAddr())
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	_, _, _ = conn.ReadFrom(make([]byte, 1))
}

// talkTCP connects to itself and asks for names and options.
func talkTCP(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		// Without IPv6 there is nothing to see.
		return nil
	}
	defer func() { _ = l.Close() }()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		// A hook may say no.
		return nil
	}
	defer func() { _ = conn.Close() }()
	return control(conn, func(fd int) {
		_, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<16)
	})
}

// control asks for the names of a connection, and does more with it.
func control(conn net.Conn, more func(fd int)) error {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		_, _ = unix.Getpeername(int(fd))
		_, _ = unix.Getsockname(int(fd))
		more(int(fd))
	})
}

// talkUnix does with sockets of the file system what hooks of those see.
func talkUnix(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "s"+strconv.Itoa(os.Getpid()))
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(dir, "s"))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", l.Addr().String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := control(conn, func(int) {}); err != nil {
		return err
	}
	packets, err := (&net.ListenConfig{}).ListenPacket(ctx, "unixgram", filepath.Join(dir, "p"))
	if err != nil {
		return err
	}
	defer func() { _ = packets.Close() }()
	if _, err := packets.WriteTo([]byte{1}, packets.LocalAddr()); err != nil {
		return err
	}
	_, _, err = packets.ReadFrom(make([]byte, 1))
	return err
}
