package serve

import (
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mostGroups is how many groups a process can be in.
const mostGroups = 1 << 16

// groupsOf are the groups of the process that made a connection, as they were then.
func groupsOf(conn *net.UnixConn) (groups []uint32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var creds *unix.Ucred
		if creds, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		groups, err = peerGroups(int(fd))
		groups = append(groups, creds.Gid)
	})
	if controlErr != nil {
		return nil, controlErr
	}
	if err != nil {
		return nil, fmt.Errorf("ask the kernel who connected: %w", err)
	}
	return unique(groups), nil
}

// peerGroups are the supplementary groups. The kernel says how much room they need.
func peerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 32)
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(groups))), uintptr(unsafe.Pointer(&size)), 0) //nolint:gosec // the kernel writes both
		switch {
		case errno == unix.ENODATA:
			return nil, nil
		case errno == unix.ERANGE && size/4 <= mostGroups && size/4 > uint32(len(groups)):
			groups = make([]uint32, size/4)
		case errno != 0:
			return nil, errno
		default:
			return groups[:size/4], nil
		}
	}
}
