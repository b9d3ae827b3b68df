package attach

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/hook"
)

// Resolve fills in what identifies the target on this node: a file that was
// replaced, or a cgroup made anew, is another target under the same name. It
// fails with ErrTarget where the target does not exist. Network devices are
// resolved by their index already.
func Resolve(a plan.Attachment, cgroupRoot string) (plan.Attachment, error) {
	h, ok := hook.Lookup(a.Hook)
	if !ok {
		return a, fmt.Errorf("resolve %s: no such hook", a.Hook)
	}
	switch h.Shape {
	case hook.Cgroup:
		st, err := stat(cgroupPath(cgroupRoot, a.Cgroup))
		if err != nil {
			return a, err
		}
		a.CgroupID = st.Ino
	case hook.UserBinary:
		st, err := stat(a.Binary)
		if err != nil {
			return a, err
		}
		a.BinaryID = fmt.Sprintf("%d:%d", st.Dev, st.Ino)
	case hook.NetworkNamespace:
		path := a.NetworkNamespace
		if path == "" {
			path = ownNetns
		}
		st, err := stat(path)
		if err != nil {
			return a, err
		}
		a.NetnsID = st.Ino
	}
	return a, nil
}

func stat(path string) (*syscall.Stat_t, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("resolve target: %w", missing(err))
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.New("resolve target: the system tells no inode")
	}
	return st, nil
}

// gone tells whether no interface has the index.
func gone(ifindex int) bool {
	_, err := net.InterfaceByIndex(ifindex)
	return err != nil
}
