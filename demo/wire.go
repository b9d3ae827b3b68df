package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// wire is a veth pair and a raw socket at its sending end.
type wire struct {
	fd    int
	index int
}

func openWire() (*wire, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = receiver
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: sender}); err != nil {
		return nil, fmt.Errorf("make veth pair: %w", err)
	}
	w := &wire{}
	for _, name := range []string{receiver, sender} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", name, err)
		}
		if err := silence(name); err != nil {
			return nil, err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return nil, fmt.Errorf("set %s up: %w", name, err)
		}
		w.index = l.Attrs().Index
	}
	var err error
	// Protocol 0: the socket only sends.
	if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open raw socket: %w", err)
	}
	return w, nil
}

// silence keeps the kernel's own IPv6 packets off the wire, so that every packet
// counted is one that was sent.
func silence(name string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("silence %s: %w", name, err)
	}
	return nil
}

func (w *wire) close() error { return unix.Close(w.fd) }

// send puts n UDP packets to a port on the wire, at a rate per second.
func (w *wire) send(ctx context.Context, n int, port uint16, rate int) error {
	frame := udpFrame(port)
	to := &unix.SockaddrLinklayer{Ifindex: w.index, Halen: 6}
	const step = time.Millisecond
	each := max(1, rate/int(time.Second/step))
	tick := time.NewTicker(step)
	defer tick.Stop()
	for n > 0 {
		for range min(each, n) {
			if err := unix.Sendto(w.fd, frame, 0, to); err != nil {
				return fmt.Errorf("send packet: %w", err)
			}
			n--
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// udpFrame is one Ethernet frame with an empty UDP datagram, padded to 60
// bytes. Nobody receives it, so its checksums are left out.
func udpFrame(port uint16) []byte {
	frame := make([]byte, 60)
	copy(frame, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
	ip := frame[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], 28)
	copy(ip[12:], net.IPv4(192, 0, 2, 1).To4())
	copy(ip[16:], net.IPv4(192, 0, 2, 2).To4())
	udp := ip[20:]
	binary.BigEndian.PutUint16(udp[0:], 40000)
	binary.BigEndian.PutUint16(udp[2:], port)
	binary.BigEndian.PutUint16(udp[4:], 8)
	return frame
}
