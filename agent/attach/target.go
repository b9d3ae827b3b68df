package attach

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/pods/process"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/hook"
)

// heldTarget is a target that was found in the file system and held, without being
// opened: open(2) waits for a writer where it meets a named pipe, and does
// things where it meets a device. What was looked at cannot be exchanged for
// another afterwards, since path names the thing and not its name.
type heldTarget struct {
	file *os.File
	stat unix.Stat_t
}

// MountCgroup2 mounts the hierarchy wherever hierarchies of version 1 have their usual places, or
// nothing is mounted.
const MountCgroup2 = "mkdir -p /run/cgroup2 && mount -t cgroup2 none /run/cgroup2"

// hold finds what the name leads to, links included, as if the root were another
// where one is given. It fails with ErrTarget where there is nothing.
func hold(root, path string) (*heldTarget, error) {
	fd, err := find(root, path)
	if err != nil {
		return nil, missing(&os.PathError{Op: "find", Path: path, Err: err})
	}
	p := &heldTarget{file: os.NewFile(uintptr(fd), path)}
	if err := unix.Fstat(fd, &p.stat); err != nil {
		_ = p.file.Close()
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	return p, nil
}

func find(root, path string) (int, error) {
	if root == "" {
		return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(at) }()
	return unix.Openat2(at, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
}

// path opens what is held, whatever its name leads to by now. Of a uprobe the
// kernel goes on showing this path, and no other would do: it looks a path up
// again, and does not report which inode it found, so that a link set there for a
// moment would put the probe into another binary. The true name stands beside
// the pin, where package inventory reads it.
func (p *heldTarget) path() string { return fmt.Sprintf("/proc/self/fd/%d", p.file.Fd()) }

// close lets it go. Closing what was never opened does nothing that could fail.
func (p *heldTarget) close() { _ = p.file.Close() }

// holdIn holds a file as the process of a container finds it.
func (host Host) holdIn(a plan.Attachment) (*heldTarget, error) {
	if host.Containers == nil {
		return nil, fmt.Errorf("find %s: %w: the containers of the node are not known", a.Target, ErrTarget)
	}
	c, ok := host.Containers.Container(a.Container)
	if !ok {
		return nil, fmt.Errorf("find %s: %w: the container has ended", a.Target, ErrTarget)
	}
	root, err := c.Root()
	if errors.Is(err, process.ErrOther) {
		return nil, fmt.Errorf("find %s: %w: %w", a.Target, ErrTarget, err)
	}
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", a.Target, err)
	}
	defer func() { _ = root.Close() }()
	p, err := holdBelow(root, a)
	if err != nil {
		return nil, err
	}
	if err := p.answers(root, c.Process, host.Mounts); err != nil {
		p.close()
		return nil, fmt.Errorf("find %s: %w: %w", a.Target, ErrTarget, err)
	}
	return p, nil
}

// answers reports whether the file is on a file system of the node's own disks or memory, or on the
// container's root. The kernel reads the page of a probe while it holds a lock of all processes
// (register_for_each_vma of kernel/events/uprobes.c), so one that a container mounted, such as
// FUSE or NFS, and an overlay of its own, would hold up the node. An overlay is the runtime's where
// that has it mounted: a container's process may have changed its root to one of its own.
func (p *heldTarget) answers(root *os.File, of process.Process, mounts *process.Mounts) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(p.file.Fd()), &fs); err != nil {
		return fmt.Errorf("look at its file system: %w", err)
	}
	switch uint32(fs.Type) {
	case unix.OVERLAYFS_SUPER_MAGIC:
		var own unix.Stat_t
		if err := unix.Fstat(int(root.Fd()), &own); err != nil {
			return fmt.Errorf("look at the root of the container: %w", err)
		}
		if own.Dev != p.stat.Dev {
			break
		}
		if is, err := of.IsMountedOutside(own.Dev, mounts); is || err != nil {
			return err
		}
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.F2FS_SUPER_MAGIC, unix.SQUASHFS_MAGIC,
		unix.EROFS_SUPER_MAGIC_V1, zfsMagic:
		return nil
	}
	return errors.New("its file system may not answer: probes take files of the container's image, and of disks of the node")
}

// zfsMagic is what ZFS says of itself (ZFS_SUPER_MAGIC of OpenZFS).
const zfsMagic = 0x2fc12fc1

// holdBelow holds a binary below a root: by its path, or by its name as libbpf looks for it.
func holdBelow(root *os.File, a plan.Attachment) (*heldTarget, error) {
	file, err := process.OpenIn(root, a.Binary)
	wrong := new(process.NotFileError)
	switch {
	case errors.As(err, &wrong), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("find %s: %w: %w", a.Target, ErrTarget, err)
	case err != nil:
		return nil, missing(err)
	}
	p := &heldTarget{file: file}
	if err := unix.Fstat(int(file.Fd()), &p.stat); err != nil {
		p.close()
		return nil, fmt.Errorf("look at %s: %w", a.Target, err)
	}
	return p, nil
}

// holdNamespace holds the network namespace of a pod.
func (host Host) holdNamespace(a plan.Attachment) (*heldTarget, error) {
	one, ok := host.Namespaces.Lookup(a.NetnsID)
	if !ok {
		return nil, fmt.Errorf("find %s: %w: the pod has ended", a.Target, ErrTarget)
	}
	file, err := one.Open()
	if err != nil {
		return nil, fmt.Errorf("find %s: %w: %w", a.Target, ErrTarget, err)
	}
	p := &heldTarget{file: file}
	if err := unix.Fstat(int(file.Fd()), &p.stat); err != nil {
		p.close()
		return nil, fmt.Errorf("look at %s: %w", a.Target, err)
	}
	return p, nil
}

// holdTarget holds the file-like target of the attachment and checks that it is
// what its hook attaches to; another thing there fails with ErrTarget, since the
// right one may come.
func (host Host) holdTarget(h hook.Hook, a plan.Attachment) (*heldTarget, error) {
	switch {
	case a.Container != "":
		return host.holdIn(a)
	case h.Shape == hook.NetworkNamespace && a.In != "":
		return host.holdNamespace(a)
	case h.Shape == hook.UserBinary && !strings.Contains(a.Binary, "/"):
		root, err := os.Open(cmp.Or(host.Root, "/"))
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", a.Target, err)
		}
		defer func() { _ = root.Close() }()
		return holdBelow(root, a)
	}
	path, root, check := a.Binary, host.Root, isBinary
	switch h.Shape {
	case hook.Cgroup:
		if host.CgroupRoot == "" {
			return nil, fmt.Errorf("find cgroup %s: no cgroup2 file system is mounted here; mount one: `%s`, and restart the agent", a.Cgroup, MountCgroup2)
		}
		path, root, check = cgroupPath(host.CgroupRoot, a.Cgroup), "", isDirectory
	case hook.NetworkNamespace:
		path, check = a.NetworkNamespace, isNamespace
		if path == "" {
			path, root = ownNetns, ""
		}
	}
	p, err := hold(root, path)
	if err != nil {
		return nil, err
	}
	if err := check(p); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func isBinary(p *heldTarget) error {
	return p.must(p.stat.Mode&unix.S_IFMT == unix.S_IFREG, "a regular file; name the program or library itself")
}

func isDirectory(p *heldTarget) error {
	return p.must(p.stat.Mode&unix.S_IFMT == unix.S_IFDIR, "a cgroup; name its directory")
}

// isNamespace knows a namespace by its file system: linux/magic.h. Before it is
// mounted over it, its place is an empty file.
func isNamespace(p *heldTarget) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(p.file.Fd()), &fs); err != nil {
		return fmt.Errorf("look at %s: %w", p.file.Name(), err)
	}
	return p.must(fs.Type == unix.NSFS_MAGIC, "a network namespace; name one that `ip netns list` shows, below /run/netns")
}

func (p *heldTarget) must(be bool, what string) error {
	if be {
		return nil
	}
	return fmt.Errorf("find %s: %w: it is %s, and not %s", p.file.Name(), ErrTarget, sayKind(p.stat.Mode), what)
}

// sayKind names what stat(2) tells in the mode.
func sayKind(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return "a named pipe"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "a device"
	}
	return "a file"
}
