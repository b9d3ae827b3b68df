package attach

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/hook"
)

// Resolve returns the targets of an attachment on this node, with what identifies them: a
// file that was replaced, or a cgroup made anew, is another target under the same name.
// They are several for the places of a USDT probe, and else one. It fails with ErrTarget
// where the target does not exist, or another thing is in its place. Network devices are
// resolved by their index already.
func Resolve(a plan.Attachment, host Host) ([]plan.Target, error) {
	h, ok := hook.Lookup(a.Hook)
	if !ok {
		return nil, fmt.Errorf("resolve %s: no such hook", a.Hook)
	}
	if !inFiles(h) || isResolved(a.Target) {
		return []plan.Target{a.Target}, nil
	}
	target, err := host.holdTarget(h, a)
	if err != nil {
		return nil, fmt.Errorf("resolve target: %w", err)
	}
	defer target.close()
	one := target.identify(h, a).Target
	if h.InBinary() != hook.InUSDT {
		return []plan.Target{one}, nil
	}
	probe, err := readProbe(target.path(), a.USDT)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w: %w", one, ErrTarget, err)
	}
	var all []plan.Target
	for _, site := range probe.sites {
		all = append(all, probe.at(one, site))
	}
	return all, nil
}

// inFiles reports whether targets of the hook are found in the file system.
func inFiles(h hook.Hook) bool {
	return h.Shape == hook.Cgroup || h.Shape == hook.UserBinary || h.Shape == hook.NetworkNamespace
}

// identify fills in what identifies the target.
func (p *heldTarget) identify(h hook.Hook, a plan.Attachment) plan.Attachment {
	switch h.Shape {
	case hook.Cgroup:
		a.CgroupID = p.stat.Ino
	case hook.UserBinary:
		a.BinaryID = p.fileID()
		if h.InBinary() == hook.InSymbols {
			a.BinaryID += fmt.Sprintf(":%d:%d", p.stat.Mtim.Nano(), p.stat.Size)
		}
	case hook.NetworkNamespace:
		a.NetnsID = p.stat.Ino
	}
	return a
}

// fileID identifies the file. On overlayfs, containers of one image have it on a file system
// each, and the kernel puts a probe into the one file below all of them. That one is told by its
// number, which overlayfs passes through, and by its times and size, which another one made of it
// by a write does not keep (Documentation/filesystems/overlayfs.rst, "Inode properties").
func (p *heldTarget) fileID() string {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(p.file.Fd()), &fs); err == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return fmt.Sprintf("overlay:%d:%d:%d:%d", p.stat.Ino, p.stat.Mtim.Nano(), p.stat.Ctim.Nano(), p.stat.Size)
	}
	return fmt.Sprintf("%d:%d", p.stat.Dev, p.stat.Ino)
}

// gone reports whether no interface has the index.
func gone(ifindex int) bool {
	_, err := net.InterfaceByIndex(ifindex)
	return err != nil
}
