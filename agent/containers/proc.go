package containers

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

	"github.com/skep-dev/skep/agent/rights"
)

// procRoot is the mount of procfs. It shows the processes of this one's PID namespace.
const procRoot = "/proc"

// The bounds of what is read of a process. A path of cgroups is at most 4,096 bytes long
// (PATH_MAX), and there are a dozen hierarchies of cgroup v1.
const (
	maxProcFile = 64 << 10
	maxPID      = 1 << 22 // PID_MAX_LIMIT of include/linux/threads.h
)

// errOther is the error of a PID that belongs to another process by now.
var errOther = errors.New("the process has ended, and another has its id")

// process is an open folder /proc/PID. It shows one process: after that has ended, it shows
// nothing, and never another process with the same id (proc_pid_lookup gives each struct pid
// an inode of its own).
type process struct{ dir *os.File }

// openProcess opens the folder of the process that has the id now.
func openProcess(pid int) (*process, error) {
	if pid <= 0 || pid > maxPID {
		return nil, fmt.Errorf("open process %d: no process has such an id", pid)
	}
	name := procRoot + "/" + strconv.Itoa(pid)
	fd, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return &process{dir: os.NewFile(uintptr(fd), name)}, nil
}

// close closes a folder, which was opened for its path alone: nothing can fail.
func (p *process) close() { _ = p.dir.Close() }

// open opens a file of the process. What a name is a link to is opened, too.
func (p *process) open(name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(p.dir.Fd()), name, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p.dir.Name() + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), p.dir.Name()+"/"+name), nil
}

// read returns a file of the process.
func (p *process) read(name string) ([]byte, error) {
	f, err := p.open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	body, err := io.ReadAll(io.LimitReader(f, maxProcFile+1))
	if err != nil {
		return nil, fmt.Errorf("read process: %w", err)
	}
	if len(body) > maxProcFile {
		return nil, fmt.Errorf("read %s: it has more than %d bytes", f.Name(), maxProcFile)
	}
	return body, nil
}

// startTime is the process's, in clock ticks since the boot.
func (p *process) startTime() (uint64, error) {
	stat, err := p.read("stat")
	if err != nil {
		return 0, err
	}
	return parseStartTime(stat)
}

// cgroup is the process's path in cgroup2, as this process's cgroup namespace shows it.
func (p *process) cgroup() (string, error) {
	body, err := p.read("cgroup")
	if err != nil {
		return "", err
	}
	return parseCgroup(body)
}

// is fails where the folder shows another process than the one that was seen, or that one
// left its cgroup.
func (p *process) is(seen Process) error {
	started, err := p.startTime()
	if err != nil {
		return err
	}
	if started != seen.StartTime {
		return fmt.Errorf("look at process %d: %w", seen.PID, errOther)
	}
	in, err := p.cgroup()
	if err != nil {
		return err
	}
	if !below(in, seen.cgroup) {
		return fmt.Errorf("look at process %d: it left the cgroup %s for %s", seen.PID, seen.cgroup, in)
	}
	return nil
}

// below reports whether a cgroup is another one, or lies below it.
func below(name, above string) bool {
	rest, ok := strings.CutPrefix(name, above)
	return ok && (rest == "" || rest[0] == '/' || above == "/")
}

// netns is the inode number of the process's network namespace.
func (p *process) netns() (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstatat(int(p.dir.Fd()), "ns/net", &stat, 0); err != nil {
		return 0, denied(&os.PathError{Op: "stat", Path: p.dir.Name() + "/ns/net", Err: err})
	}
	return stat.Ino, nil
}

// denied names the capability that looking into another user's process takes
// (PTRACE_MODE_READ of ptrace(2)), where it is missing.
func denied(err error) error {
	return rights.ExplainAttach(err, []rights.Capability{rights.SysPtrace})
}

// parseStartTime reads field 22 of /proc/PID/stat. The second field, the name of the
// process, is in parentheses and may have any byte in it.
func parseStartTime(stat []byte) (uint64, error) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, errors.New("parse stat: it has no name")
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("parse stat: it has %d fields behind the name", len(fields))
	}
	started, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parse stat: %w", err)
	}
	return started, nil
}

// parseCgroup reads the path in cgroup2 of /proc/PID/cgroup: the line of the hierarchy 0. It
// begins with a slash. One outside of the cgroup namespace has /.. at its begin, as often as
// needed (cgroup_namespaces(7)), and nowhere else.
func parseCgroup(body []byte) (string, error) {
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
