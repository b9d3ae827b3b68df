package attach

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

// cgroup serves every hook of a cgroup: they differ in the attach type only. A namespace's program runs before all that
// are at the cgroup, where the kernel orders them there, so that the cluster's decide about what it made of a call.
func cgroup(h hook.Hook, r Request) (pins.Held, error) {
	if r.Attachment.Application.IsNamespaced() {
		l, err := plain.Of(attachFirst(h, r))
		if !errors.Is(err, unix.EINVAL) {
			return l, missing(err)
		}
		// Linux 6.1 runs those at one cgroup in the order in which they came.
	}
	l, err := plain.Of(link.AttachCgroup(link.CgroupOptions{
		Path: r.Found.target.path(), Attach: h.AttachType, Program: r.Program,
	}))
	return l, missing(err)
}

// attachFirst attaches a program before those of a cgroup. It fails with EINVAL where the kernel orders none.
func attachFirst(h hook.Hook, r Request) (pins.Held, error) {
	folder, err := os.Open(r.Found.target.path())
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	defer func() { _ = folder.Close() }()
	l, err := link.AttachRawLink(link.RawLinkOptions{Target: int(folder.Fd()), Program: r.Program, Attach: h.AttachType, Flags: unix.BPF_F_BEFORE})
	if err != nil {
		// No *RawLink that is nil may become a pins.Held.
		return nil, err
	}
	return l, nil
}

// cgroupPath keeps a definition's path below the mount, whatever dots it has.
func cgroupPath(root, path string) string {
	return filepath.Join(root, filepath.Clean("/"+path))
}
