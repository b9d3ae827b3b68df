package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Root opens the folder that the process has for its root, for its path alone (O_PATH): the
// container's files as it sees them. The caller closes it. Looking into a process of another user
// takes CAP_SYS_PTRACE, and the PID namespace of the node.
//
// It is the root of the process that the runtime started, or of none: the process is compared
// before and after. A process may change its root to what it can reach by itself.
func (p Process) Root() (*os.File, error) {
	f, err := p.openOwn("root", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open root of process %d: %w", p.PID, err)
	}
	return f, nil
}

// NetworkNamespace opens the network namespace of the process, and returns its inode number.
// The caller closes it. It takes what Root does. Of a pod, ask its Sandbox where that has a
// process: only that one runs nothing of the pod's images.
func (p Process) NetworkNamespace() (*os.File, uint64, error) {
	f, err := p.openOwn("ns/net", unix.O_RDONLY)
	if err != nil {
		return nil, 0, fmt.Errorf("open network namespace of process %d: %w", p.PID, err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("look at network namespace of process %d: %w", p.PID, err), f.Close())
	}
	return f, stat.Ino, nil
}

// openOwn opens a file of the process, if that is the same process before and after.
func (p Process) openOwn(name string, flags int) (*os.File, error) {
	now, err := Open(p.PID)
	if err != nil {
		return nil, err
	}
	defer now.Close()
	if err := now.Check(p); err != nil {
		return nil, err
	}
	f, err := now.open(name, flags)
	if err != nil {
		return nil, denied(err)
	}
	if err := now.Check(p); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// IsRunning reports whether the process runs, in the cgroup that it was seen in. One that ended
// and that no caller waited for does not.
func (p Process) IsRunning() bool {
	if p.PID <= 0 {
		return false
	}
	// The process is the oldest that had the id, so a pidfd from before the check is its own.
	pidfd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(pidfd) }()
	now, err := Open(p.PID)
	if err != nil {
		return false
	}
	defer now.Close()
	if now.Check(p) != nil {
		return false
	}
	ended, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return ended == 0 && err == nil
}

// NotFileError is the error of a path that leads to something else than a file that a
// program or library can be in.
type NotFileError struct {
	// Path is the one inside the root. Is says what is there.
	Path, Is string
}

// Error implements error.
func (n *NotFileError) Error() string {
	return fmt.Sprintf("open %s: it is %s, and not a regular file; name the program or library itself", n.Path, n.Is)
}

// tries bounds how often a path is resolved again because folders were moved meanwhile.
const tries = 64

// OpenIn finds a regular file as a process with the root does, and opens it for its path alone
// (O_PATH): what was found cannot be exchanged afterwards, and is to be opened through
// /proc/self/fd. Links stay in the root, those of procfs lead nowhere, and the kernel itself
// notices what is moved meanwhile (openat2(2)). The caller closes the file. A path without a
// slash is searched for as libbpf does. It fails with an fs.ErrNotExist, or a *NotFileError
// for folders, devices, named pipes, and files of procfs and other file systems of the kernel's.
//
// A file system such as FUSE or NFS may never answer, and the container may have mounted it: the
// caller looks beside its loop, and gives up after a time.
func OpenIn(root *os.File, name string) (*os.File, error) {
	if name == "" || strings.ContainsRune(name, 0) || len(name) >= unix.PathMax {
		return nil, fmt.Errorf("open %.64q: it is not a path", name)
	}
	if strings.Contains(name, "/") {
		return openFile(root, name, 0)
	}
	return search(root, name)
}

// openFile opens a regular file with one of the permissions.
func openFile(root *os.File, name string, permissions uint32) (*os.File, error) {
	fd, err := -1, error(unix.EAGAIN)
	for i := 0; i < tries && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)); i++ {
		fd, err = unix.Openat2(int(root.Fd()), name, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	if err := checkFile(f, permissions); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// checkFile fails for what no program or library is in. O_PATH has opened nothing yet: neither
// a named pipe waits for a writer, nor does a device anything.
func checkFile(f *os.File, permissions uint32) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	if is := kinds()[stat.Mode&unix.S_IFMT]; is != "" {
		return &NotFileError{f.Name(), is}
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &system); err != nil {
		return fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	if is := kernelSystems()[system.Type]; is != "" {
		return &NotFileError{f.Name(), "a file of " + is}
	}
	if permissions != 0 && stat.Mode&permissions == 0 {
		return &os.PathError{Op: "open", Path: f.Name(), Err: unix.EACCES}
	}
	return nil
}

// kinds are those that are no regular file (inode(7)).
func kinds() map[uint32]string {
	return map[uint32]string{unix.S_IFIFO: "a named pipe", unix.S_IFSOCK: "a socket", unix.S_IFDIR: "a folder",
		unix.S_IFCHR: "a device", unix.S_IFBLK: "a device", unix.S_IFLNK: "a link"}
}

// kernelSystems are file systems whose files are the kernel's (linux/magic.h).
func kernelSystems() map[int64]string {
	return map[int64]string{unix.PROC_SUPER_MAGIC: "procfs", unix.SYSFS_MAGIC: "sysfs", unix.CGROUP2_SUPER_MAGIC: "cgroup2",
		unix.CGROUP_SUPER_MAGIC: "cgroup", unix.DEBUGFS_MAGIC: "debugfs", unix.TRACEFS_MAGIC: "tracefs", unix.NSFS_MAGIC: "nsfs",
		unix.SECURITYFS_MAGIC: "securityfs", unix.BPF_FS_MAGIC: "bpffs"}
}

// search looks for a name in the folders that libbpf looks in (resolve_full_path of
// tools/lib/bpf/libbpf.c), but for those of this process's environment: libraries in those of
// libraries, programs in those of programs, which have to be executable.
func search(root *os.File, name string) (*os.File, error) {
	folders, permissions := programFolders(), uint32(0o111)
	if strings.HasSuffix(name, ".so") || strings.Contains(name, ".so.") {
		folders, permissions = libraryFolders(runtime.GOARCH), 0
	}
	for _, folder := range folders {
		f, err := openFile(root, path.Join(folder, name), permissions)
		if err == nil {
			return f, nil
		}
		// As for a shell, what is no program there ends no search.
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.EACCES) && !errors.As(err, new(*NotFileError)) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("find %s in %s: %w%s", name, strings.Join(folders, ", "), fs.ErrNotExist, versionHint(name))
}

// versionHint says how libraries are named, for a name that lacks the version: such a file is
// in packages for developers, or nowhere.
func versionHint(name string) string {
	if !strings.HasPrefix(name, "lib") || strings.Contains(name, ".so.") {
		return ""
	}
	return "; programs load libraries by names with a version, such as libssl.so.3"
}

func programFolders() []string {
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
}

// libraryFolders are those of the loader, and those of Debian's multiarch.
func libraryFolders(architecture string) []string {
	folders := []string{"/lib64", "/usr/lib64", "/lib", "/usr/lib"}
	if name := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu", "386": "i386-linux-gnu", "arm": "arm-linux-gnueabihf",
		"s390x": "s390x-linux-gnu", "ppc64le": "powerpc64le-linux-gnu", "riscv64": "riscv64-linux-gnu"}[architecture]; name != "" {
		folders = append(folders, "/lib/"+name, "/usr/lib/"+name)
	}
	return folders
}
