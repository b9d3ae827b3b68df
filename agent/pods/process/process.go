// Package process finds a process of this node again, and opens what is its own: its root, the
// files below that, and its network namespace.
//
// The processes are others', which may end, be replaced by one with the same id, and change
// files, links and mounts at any time. What is opened here is the process's all the same, or
// nothing is. The package reads and changes nothing of what it opens.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/rights"
)

// procRoot is the mount of procfs. It shows the processes of this one's PID namespace.
const procRoot = "/proc"

// MaxPID is the highest id that a process can have (PID_MAX_LIMIT of
// include/linux/threads.h).
const MaxPID = 1 << 22

// maxFile bounds what is read of a process. A path of cgroups is at most 4,096 bytes long
// (PATH_MAX), and there are a dozen hierarchies of cgroup v1.
const maxFile = 64 << 10

// ErrOther is the error of a PID that belongs to another process by now.
var ErrOther = errors.New("the process has ended, and another has its id")

// Process is a process of the node, which one with the same id is not taken for.
type Process struct {
	// PID is its id in the PID namespace of this process; 0 is no process.
	PID int
	// StartTime is when it started, in clock ticks since the boot (field 22 of
	// /proc/PID/stat).
	StartTime uint64
	// cgroup is a path as /proc/PID/cgroup has it, which the process has to be in, or below.
	cgroup string
}

// Within returns the process, which from now on counts as long as it is in a cgroup or below
// it. The path is as /proc/PID/cgroup has it.
func (p Process) Within(cgroup string) Process {
	p.cgroup = cgroup
	return p
}

// Folder is an open folder /proc/PID. It shows one process: after that has ended, it shows
// nothing, and never another process with the same id (proc_pid_lookup gives each struct pid
// an inode of its own).
type Folder struct{ dir *os.File }

// Open opens the folder of the process that has the id now. The caller closes it.
func Open(pid int) (*Folder, error) {
	if pid <= 0 || pid > MaxPID {
		return nil, fmt.Errorf("open process %d: no process has such an id", pid)
	}
	name := procRoot + "/" + strconv.Itoa(pid)
	fd, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return &Folder{dir: os.NewFile(uintptr(fd), name)}, nil
}

// Close closes a folder, which was opened for its path alone: nothing can fail.
func (f *Folder) Close() { _ = f.dir.Close() }

// open opens a file of the process. What a name is a link to is opened, too.
func (f *Folder) open(name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(f.dir.Fd()), name, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: f.dir.Name() + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), f.dir.Name()+"/"+name), nil
}

// read returns a file of the process.
func (f *Folder) read(name string) ([]byte, error) {
	opened, err := f.open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = opened.Close() }()
	body, err := io.ReadAll(io.LimitReader(opened, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read process: %w", err)
	}
	if len(body) > maxFile {
		return nil, fmt.Errorf("read %s: it has more than %d bytes", opened.Name(), maxFile)
	}
	return body, nil
}

// StartTime is the process's, in clock ticks since the boot.
func (f *Folder) StartTime() (uint64, error) {
	stat, err := f.read("stat")
	if err != nil {
		return 0, err
	}
	return parseStartTime(stat)
}

// Cgroup is the process's path in cgroup2, as this process's cgroup namespace shows it.
func (f *Folder) Cgroup() (string, error) {
	body, err := f.read("cgroup")
	if err != nil {
		return "", err
	}
	return ParseCgroup(body)
}

// Check fails where the folder shows another process than the one that was seen, or that one
// left its cgroup.
func (f *Folder) Check(seen Process) error {
	started, err := f.StartTime()
	if err != nil {
		return err
	}
	if started != seen.StartTime {
		return fmt.Errorf("look at process %d: %w", seen.PID, ErrOther)
	}
	in, err := f.Cgroup()
	if err != nil {
		return err
	}
	if !Below(in, seen.cgroup) {
		return fmt.Errorf("look at process %d: it left the cgroup %s for %s", seen.PID, seen.cgroup, in)
	}
	return nil
}

// Below reports whether a cgroup is another one, or lies below it.
func Below(name, above string) bool {
	rest, ok := strings.CutPrefix(name, above)
	return ok && (rest == "" || rest[0] == '/' || above == "/")
}

// NetnsID is the inode number of the process's network namespace.
func (f *Folder) NetnsID() (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstatat(int(f.dir.Fd()), "ns/net", &stat, 0); err != nil {
		return 0, denied(&os.PathError{Op: "stat", Path: f.dir.Name() + "/ns/net", Err: err})
	}
	return stat.Ino, nil
}

// denied names the capability that looking into another user's process takes
// (PTRACE_MODE_READ of ptrace(2)) where it is missing, and otherwise what denies it.
func denied(err error) error {
	if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return err
	}
	explained := rights.ExplainAttach(err, []rights.Capability{rights.SysPtrace})
	if errors.As(explained, new(*rights.Error)) {
		return explained
	}
	return fmt.Errorf("%w: this process has CAP_SYS_PTRACE; a security module such as AppArmor denies it (appArmorProfile Unconfined), "+
		"or the process is outside of this one's user namespace", err)
}

// Parent is the id of the process's parent.
func (f *Folder) Parent() (int, error) {
	stat, err := f.read("stat")
	if err != nil {
		return 0, err
	}
	parent, err := parseStat(stat, 4)
	return int(parent), err
}

// parseStartTime reads field 22 of /proc/PID/stat.
func parseStartTime(stat []byte) (uint64, error) { return parseStat(stat, 22) }

// parseStat reads a number of /proc/PID/stat by its field, of which the first is 1. The second one,
// the name of the process, is in parentheses and may have any byte in it.
func parseStat(stat []byte, field int) (uint64, error) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, errors.New("parse stat: it has no name")
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("parse stat: it has %d fields behind the name", len(fields))
	}
	n, err := strconv.ParseUint(fields[field-3], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parse stat: %w", err)
	}
	return n, nil
}

// ParseCgroup reads the path in cgroup2 of /proc/PID/cgroup: the line of the hierarchy 0. It
// begins with a slash. One outside of the cgroup namespace has /.. at its begin, as often as
// needed (cgroup_namespaces(7)), and nowhere else.
func ParseCgroup(body []byte) (string, error) {
	for line := range strings.Lines(string(body)) {
		in, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !ok {
			continue
		}
		if !isCgroup(in) {
			return "", fmt.Errorf("parse cgroup: %.64q is not the path of a cgroup", in)
		}
		return in, nil
	}
	return "", errors.New("parse cgroup: no line is of cgroup2")
}

// isCgroup reports whether the kernel may have written the path.
func isCgroup(in string) bool {
	rest := in
	for rest == "/.." || strings.HasPrefix(rest, "/../") {
		rest = rest[len("/.."):]
	}
	if len(in) > unix.PathMax || in == "" || strings.ContainsRune(in, 0) || strings.HasSuffix(in, " (deleted)") {
		return false
	}
	return rest == "" || path.Clean(rest) == rest && rest[0] == '/'
}
