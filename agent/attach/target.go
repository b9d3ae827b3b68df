package attach

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/plan"
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
// again, and tells nobody which inode it found, so that a link set there for a
// moment would put the probe into another binary. The true name stands beside
// the pin, where package inventory reads it.
func (p *heldTarget) path() string { return fmt.Sprintf("/proc/self/fd/%d", p.file.Fd()) }

// close lets it go. Closing what was never opened does nothing that could fail.
func (p *heldTarget) close() { _ = p.file.Close() }

// holdTarget holds the file-like target of the attachment and checks that it is
// what its hook attaches to; another thing there fails with ErrTarget, since the
// right one may come.
func (host Host) holdTarget(h hook.Hook, a plan.Attachment) (*heldTarget, error) {
	path, root, check := a.Binary, host.Root, isBinary
	switch h.Shape {
	case hook.Cgroup:
		if host.CgroupRoot == "" {
			return nil, fmt.Errorf("find cgroup %s: no cgroup2 file system is mounted here; mount one (mount -t cgroup2 none /sys/fs/cgroup/unified) or name its mount point", a.Cgroup)
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
	return p.must(fs.Type == unix.NSFS_MAGIC, "a network namespace; name one as ip netns lists it, below /run/netns")
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
