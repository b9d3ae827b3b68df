package chain_test

import (
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

// wire is a pair of interfaces in a network namespace of the test's own.
type wire struct {
	near, far int
	socket    int
}

func newWire(t *testing.T) wire {
	t.Helper()
	need.Kernel(t)
	leaks.NetworkNamespace(t)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"}); err != nil {
		t.Fatalf("make veth pair: %v", err)
	}
	var w wire
	for name, index := range map[string]*int{"near": &w.near, "far": &w.far} {
		device, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(device); err != nil {
			t.Fatal(err)
		}
		*index = device.Attrs().Index
	}
	// Until the kernel has looked at the link, it drops what is sent and says nothing.
	for _, index := range []int{w.near, w.far} {
		eventually(t, "the link does not come up", func() bool {
			device, err := netlink.LinkByIndex(index)
			return err == nil && device.Attrs().OperState == netlink.OperUp
		})
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		t.Fatalf("open packet socket: %v", err)
	}
	t.Cleanup(func() { unix.Close(socket) })
	w.socket = socket
	return w
}

// send puts one frame on the wire, of a protocol nobody speaks.
func (w wire) send(t *testing.T) {
	t.Helper()
	frame := make([]byte, 64)
	copy(frame, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	frame[12], frame[13] = 0x88, 0xb5
	if err := unix.Sendto(w.socket, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.far}); err != nil {
		t.Fatalf("send frame: %v", err)
	}
}

// eventually waits until a condition holds, and fails with words where it does
// not within a generous time.
func eventually(t *testing.T, words string, condition func() bool) {
	t.Helper()
	await.True(t, words, 3*time.Minute, condition)
}

func TestChainsReplaceEachOtherOnAnInterfaceWithoutMissingAPacket(t *testing.T) {
	w := newWire(t)
	app := func(key string) chain.Member { return member(t, key, "own_frames") }
	members := []chain.Member{app("first"), app("second"), app("third")}
	all := load(t, members...)
	attached, err := link.AttachXDP(link.XDPOptions{Program: all.Program, Interface: w.near})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { attached.Close() })
	const rounds, burst = 20, 50
	for round := range rounds {
		// Each round drops or brings back the last member.
		linked := joined(t, members[:2+round%2]...)
		next, err := chain.Load(linked, all.open, ebpf.ProgramOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range burst {
			if i == burst/2 {
				if err := attached.Update(next.Program); err != nil {
					t.Fatal(err)
				}
			}
			w.send(t)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
		want := uint64((round + 1) * burst)
		eventually(t, "the first member misses packets", func() bool { return all.counted(t, "first") == want })
		eventually(t, "the second member misses packets", func() bool { return all.counted(t, "second") == want })
	}
	if third := all.counted(t, "third"); third == 0 || third == rounds*burst {
		t.Errorf("the third member counted %d of %d packets, want those of its rounds", third, rounds*burst)
	}
}
