package rtnl

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Conn looks up one thing after another. The kernel makes no list for that, so that no number of
// others hides one. It is of the network namespace of the thread that opened it.
type Conn struct {
	socket int
	buffer []byte
}

// Open opens a connection, which the caller closes.
func Open() (*Conn, error) {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	return &Conn{socket, make([]byte, nl.RECEIVE_BUFFER_SIZE)}, nil
}

// Close closes the connection.
func (c *Conn) Close() { _ = unix.Close(c.socket) }

// Ask returns the kernel's answer, of a kind, to a request for one thing. It fails with the kernel's
// errno. The answer is valid until the next call.
func (c *Conn) Ask(request *nl.NetlinkRequest, kind uint16) ([]byte, error) {
	if err := unix.Sendto(c.socket, request.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	for {
		// The kernel answers such a request before sendto returns.
		n, from, err := unix.Recvfrom(c.socket, c.buffer, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the kernel's answer: %w", err)
		}
		// A process of the pod may send here, too.
		if is, ok := from.(*unix.SockaddrNetlink); !ok || is.Pid != nl.PidKernel {
			continue
		}
		messages, err := syscall.ParseNetlinkMessage(c.buffer[:n])
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			switch {
			case m.Header.Seq != request.Seq:
				continue
			case m.Header.Type == kind:
				return m.Data, nil
			case m.Header.Type == unix.NLMSG_ERROR:
				return nil, ending(m.Data, false)
			}
		}
	}
}
