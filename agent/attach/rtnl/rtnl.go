// Package rtnl asks the kernel about network devices, routes and traffic control by rtnetlink(7),
// in the network namespace of the calling thread, and bounds the time and the length of answers:
// processes of a pod may make any number of each. It decides nothing.
package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Limits bound a list.
type Limits struct {
	// Entries is how many are read, any number where it is 0.
	Entries int
	// Until is when the list ends at the latest.
	Until time.Time
}

// PartialError is the error of a list that was not read whole.
type PartialError struct {
	// Read is how many entries were read, and Limit how many may be; Limit is 0 where the time was over.
	Read, Limit int
}

// Error implements error.
func (e *PartialError) Error() string {
	if e.Limit == 0 {
		return fmt.Sprintf("the time was over after %d entries", e.Read)
	}
	return fmt.Sprintf("the list has more than %d entries", e.Limit)
}

// Links lists devices, without their counters.
func Links(l Limits) (all []netlink.Link, err error) {
	// RTEXT_FILTER_SKIP_STATS of rtnetlink.h.
	const skipStats = 1 << 3
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	err = List(request, unix.RTM_NEWLINK, l, func(message []byte) error {
		one, err := netlink.LinkDeserialize(nil, message)
		all = append(all, one)
		return err
	})
	return all, err
}

// List reads a list, and ends with *PartialError where it is long or time is over: the kernel
// makes no more of it when the socket is closed. A list that changed meanwhile is a
// netlink.ErrDumpInterrupted. Each is given the messages of a kind.
func List(request *nl.NetlinkRequest, kind uint16, l Limits, each func([]byte) error) error {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer socket.Close()
	// The kernel gives the routes of the table alone that the request names.
	if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		return err
	}
	if err := socket.Send(request); err != nil {
		return err
	}
	read, interrupted := 0, false
	for {
		messages, err := receive(socket, l.Until)
		if errors.Is(err, unix.EAGAIN) {
			return &PartialError{Read: read}
		}
		if err != nil {
			return err
		}
		for _, m := range messages {
			interrupted = interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case m.Header.Type == unix.NLMSG_DONE || m.Header.Type == unix.NLMSG_ERROR:
				return ending(m.Data, interrupted)
			case m.Header.Type != kind:
				continue
			case l.Entries > 0 && read == l.Entries:
				return &PartialError{Read: read, Limit: l.Entries}
			}
			read++
			if err := each(m.Data); err != nil {
				return err
			}
		}
	}
}

// receive reads messages of the kernel. It fails with EAGAIN where time is over.
func receive(socket *nl.NetlinkSocket, until time.Time) ([]syscall.NetlinkMessage, error) {
	left := time.Until(until)
	if left <= 0 {
		return nil, unix.EAGAIN
	}
	wait := unix.NsecToTimeval(max(left, time.Microsecond).Nanoseconds())
	if err := socket.SetReceiveTimeout(&wait); err != nil {
		return nil, err
	}
	messages, from, err := socket.Receive()
	if err == nil && from.Pid != nl.PidKernel {
		err = fmt.Errorf("process %d answers in place of the kernel", from.Pid)
	}
	return messages, err
}

// ending is the error of the last message of an answer.
func ending(data []byte, interrupted bool) error {
	if len(data) >= 4 {
		if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
			return unix.Errno(-code)
		}
	}
	if interrupted {
		return netlink.ErrDumpInterrupted
	}
	return nil
}
