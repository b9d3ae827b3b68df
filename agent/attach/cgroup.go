package attach

import (
	"path/filepath"

	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

// cgroup serves every hook of a cgroup: they differ in the attach type only.
func cgroup(h hook.Hook, r Request) (pins.Held, error) {
	l, err := plain.Of(link.AttachCgroup(link.CgroupOptions{
		Path: r.Found.target.path(), Attach: h.AttachType, Program: r.Program,
	}))
	return l, missing(err)
}

// cgroupPath keeps a definition's path below the mount, whatever dots it has.
func cgroupPath(root, path string) string {
	return filepath.Join(root, filepath.Clean("/"+path))
}
