package containers

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/pods/process"
)

// node is what the kernel shows of this node: processes, and cgroups below one mount.
type node struct {
	// root is the mount of cgroup2.
	root *os.File
	// origin is where this process's cgroup namespace begins below the mount: paths in
	// /proc/PID/cgroup are seen from there. It begins with a slash.
	origin string
	// netns is the inode number of the network namespace of the node's first process; 0 where
	// it cannot be read.
	netns uint64
}

// maxWalked bounds how many cgroups are looked at for this process's own, and by the source
// of cgroups.
const maxWalked = 8192

// maxMembers bounds how much is read of the list of a cgroup's processes, in bytes.
const maxMembers = 256 << 10

// errNotCgroup2 is the error of a folder that is not of cgroup2.
var errNotCgroup2 = errors.New("no cgroup2 file system is mounted there")

// openNode opens the mount of cgroup2.
func openNode(mount string) (*node, error) {
	fd, err := unix.Open(mount, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: mount, Err: err}
	}
	n := &node{root: os.NewFile(uintptr(fd), mount)}
	if n.origin, err = n.findOrigin(); err != nil {
		n.close()
		return nil, fmt.Errorf("find own cgroup below %s: %w", mount, err)
	}
	if first, err := process.Open(1); err == nil {
		n.netns, _ = first.NetnsID()
		first.Close()
	}
	return n, nil
}

func (n *node) close() { _ = n.root.Close() }

// findOrigin compares the root of the mount with that of the cgroup namespace. Where the mount
// begins above, only the search for this process says where.
func (n *node) findOrigin() (string, error) {
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(n.root.Fd()), &system); err != nil {
		return "", err
	}
	if system.Type != unix.CGROUP2_SUPER_MAGIC {
		return "", errNotCgroup2
	}
	mounted, err := mountRoot(n.root)
	if err != nil {
		return "", err
	}
	if mounted == "/" {
		return "/", nil
	}
	if !strings.HasPrefix(mounted, "/..") {
		return "", fmt.Errorf("the mount begins at the cgroup %s: mount the whole of cgroup2", mounted)
	}
	body, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return "", err
	}
	own, err := process.ParseCgroup(body)
	if err != nil {
		return "", err
	}
	found, err := n.searchOwn()
	if err != nil {
		return "", err
	}
	above, ok := strings.CutSuffix(found, strings.TrimSuffix(own, "/"))
	if !ok {
		return "", fmt.Errorf("this process is in %s, which is not %s as its cgroup namespace has it", found, own)
	}
	return "/" + strings.Trim(above, "/"), nil
}

// mountRoot is which cgroup a mount shows at its root, as the cgroup namespace has it.
func mountRoot(mount *os.File) (string, error) {
	var stat unix.Statx_t
	if err := unix.Statx(int(mount.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &stat); err != nil {
		return "", fmt.Errorf("stat mount: %w", err)
	}
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	found, err := mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		return uint64(m.ID) != stat.Mnt_id, uint64(m.ID) == stat.Mnt_id
	})
	if err != nil {
		return "", fmt.Errorf("read mounts: %w", err)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("read mounts: none has the id %d", stat.Mnt_id)
	}
	return found[0].Root, nil
}

// searchOwn looks for this process in all cgroups of the mount.
func (n *node) searchOwn() (string, error) {
	own, looked := strconv.Itoa(os.Getpid()), 0
	found := ""
	err := fs.WalkDir(os.DirFS(fmt.Sprintf("/proc/self/fd/%d", n.root.Fd())), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil //nolint:nilerr // Cgroups come and go.
		}
		if looked++; looked > maxWalked {
			return fmt.Errorf("this process is in none of %d cgroups", maxWalked)
		}
		for _, pid := range n.members(name) {
			if strconv.Itoa(pid) == own {
				found = "/" + strings.TrimPrefix(name, ".")
				return fs.SkipAll
			}
		}
		return nil
	})
	if err == nil && found == "" {
		err = errors.New("this process is in none")
	}
	return found, err
}

// openCgroup opens a folder or file below the mount, through no link and no other mount.
func (n *node) openCgroup(name string, flags uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(n.root.Fd()), path.Join(".", name), &unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: n.root.Name() + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), n.root.Name()+"/"+name), nil
}

// members are the processes in a cgroup, by their ids, and not those below it.
func (n *node) members(name string) []int {
	f, err := n.openCgroup(path.Join(name, "cgroup.procs"), unix.O_RDONLY)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	body, err := io.ReadAll(io.LimitReader(f, maxMembers))
	if err != nil {
		return nil
	}
	var pids []int
	for line := range strings.Lines(string(body)) {
		// A process outside of this PID namespace is 0.
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// cgroupID is the id of a cgroup for the kernel: the inode number of its folder.
func (n *node) cgroupID(name string) (uint64, error) {
	dir, err := n.openCgroup(name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return 0, err
	}
	defer func() { _ = dir.Close() }()
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return 0, fmt.Errorf("look at cgroup %s: %w", name, err)
	}
	return stat.Ino, nil
}

// place is a cgroup of the node.
type place struct {
	path string
	id   uint64
}

// locate finds the cgroup with the path below the mount.
func (n *node) locate(name string) (place, error) {
	name = strings.Trim(name, "/")
	id, err := n.cgroupID(name)
	if err != nil {
		return place{}, err
	}
	return place{name, id}, nil
}

// skip is why a container or a sandbox is left out.
type skip struct {
	reason Reason
	err    error
}

func (s *skip) Error() string { return s.err.Error() }
func (s *skip) Unwrap() error { return s.err }

func skipFor(reason Reason, err error) error { return &skip{reason, err} }

// confirmed is a process that is in the cgroup of the container that the runtime says.
type confirmed struct {
	process.Process
	in    place
	netns uint64
	// pidfd becomes readable when the process ends. The caller closes it.
	pidfd int
}

// confirm looks whether the process is the container's. The runtime's answer may be old, and
// the id another process's by now, so the kernel has to show the process in the container's
// cgroup, before and after all else is read of it.
func (n *node) confirm(pid int, id, record string) (*confirmed, error) {
	p, err := process.Open(pid)
	if err != nil {
		return nil, skipFor(noProcess(err), hint(err))
	}
	defer p.Close()
	seen := process.Process{PID: pid}
	if seen.StartTime, err = p.StartTime(); err != nil {
		return nil, skipFor(noProcess(err), err)
	}
	in, err := p.Cgroup()
	if err != nil {
		return nil, skipFor(noProcess(err), err)
	}
	where := path.Join(n.origin, in)
	own := ownCgroup(where, id, record)
	if own == "" {
		return nil, skipFor(OtherCgroup, fmt.Errorf("look at process %d: it is in the cgroup %s, and not in that of %s", pid, where, id))
	}
	seen = seen.Within(strings.TrimSuffix(in, strings.TrimPrefix(where, own)))
	c := &confirmed{Process: seen, pidfd: -1}
	if c.in, err = n.locate(own); err != nil {
		return nil, skipFor(NoCgroup, err)
	}
	if c.netns, err = p.NetnsID(); err != nil {
		return nil, skipFor(Unreadable, err)
	}
	if c.pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
		return nil, skipFor(noProcess(err), fmt.Errorf("open process %d: %w", pid, err))
	}
	// The id belonged to the same process when it was opened, if that runs still.
	if err := p.Check(seen); err != nil {
		_ = unix.Close(c.pidfd)
		return nil, skipFor(noProcess(err), err)
	}
	return c, nil
}

// noProcess is why a process is not seen.
func noProcess(err error) Reason {
	for _, own := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EACCES, unix.EPERM} {
		if errors.Is(err, own) {
			return Unreadable
		}
	}
	return NoProcess
}

// initialPIDs is the initial PID namespace, whose inode is the same on every Linux
// (PROC_PID_INIT_INO of include/linux/proc_ns.h).
const initialPIDs = "pid:[4026531836]"

// hint adds what is usually the cause where the runtime's processes are not there.
func hint(err error) error {
	if name, e := os.Readlink("/proc/self/ns/pid"); e == nil && name != initialPIDs {
		return fmt.Errorf("%w; it has ended, or this process is not in the runtime's PID namespace (hostPID)", err)
	}
	return err
}

// ownCgroup is the part of a process's cgroup that is the container's own: up to the folder
// that has the container's id, as every runtime names them, or up to the path of the
// runtime's record. A container may make cgroups below its own, so the outermost counts.
func ownCgroup(in, id, record string) string {
	end := 0
	for part := range strings.SplitSeq(strings.TrimPrefix(in, "/"), "/") {
		end += 1 + len(part)
		if hasID(part, id) {
			return in[:end]
		}
	}
	if want := recorded(record); len(want) > 1 && process.Below(in, want) {
		return want
	}
	return ""
}

// hasID reports whether a cgroup is named for the container: by its id alone (cgroupfs), or as
// a scope of systemd, such as cri-containerd-ID.scope. CRI-O has a process of the node's own beside each
// container, in crio-conmon-ID.
func hasID(part, id string) bool {
	part = strings.TrimSuffix(part, ".scope")
	rest, ok := strings.CutSuffix(part, id)
	return ok && id != "" && (rest == "" || strings.HasSuffix(rest, "-")) && !strings.HasSuffix(rest, "conmon-")
}

// recorded is the path of the runtime's record (linux.cgroupsPath of the OCI runtime
// specification). One for systemd, slice:prefix:name, has no path that all agree upon.
func recorded(record string) string {
	if !strings.HasPrefix(record, "/") || strings.Contains(record, ":") {
		return ""
	}
	return path.Clean(record)
}

// podCgroup is the cgroup above, where it is that of the pod alone: the kubelet gives it the
// pod's UID for a name, which systemd has with underscores.
func (n *node) podCgroup(of place, uid string) place {
	above := path.Dir(of.path)
	if !isPodCgroup(path.Base(above), uid) {
		return place{}
	}
	found, err := n.locate(above)
	if err != nil {
		return place{}
	}
	return found
}

// isPodCgroup reports whether the kubelet names the cgroup of the pod so.
func isPodCgroup(name, uid string) bool {
	slice, isSlice := strings.CutSuffix(name, ".slice")
	return uid != "" && (name == "pod"+uid || isSlice && strings.HasSuffix("-"+slice, "-pod"+strings.ReplaceAll(uid, "-", "_")))
}
