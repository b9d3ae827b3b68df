package pins

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openOwn opens a directory that only the process's own user can change, and whose
// name only that user or root can give to another. What lies in it is adopted, and
// who can open it can lock it. A directory of the user's own that was open to
// others is closed to them.
func openOwn(dir string) (*os.File, error) {
	if err := checkParent(filepath.Dir(filepath.Clean(dir))); err != nil {
		return nil, err
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%w: it is no directory, or a symbolic link to one; name the directory itself, or remove it after you looked who made it", ErrExposed)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	if err := closeToOthers(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// CloseToOthers takes all rights of group and others from a directory of the
// process's own user. That of another fails with ErrExposed: who owns a directory
// reads and replaces what is in it.
func CloseToOthers(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(closeToOthers(f), f.Close())
}

// closeToOthers takes all rights of group and others from a directory of the
// process's own user, and rejects that of another.
func closeToOthers(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("read owner: %w", err)
	}
	mode := st.Mode & 0o7777
	if own := os.Geteuid(); int(st.Uid) != own {
		return fmt.Errorf("%w: it belongs to uid %d with mode %#o, and this process runs as uid %d; look who made it, remove it, and start again",
			ErrExposed, st.Uid, mode, own)
	}
	if mode&0o077 == 0 {
		return nil
	}
	if err := unix.Fchmod(int(f.Fd()), 0o700); err != nil {
		return fmt.Errorf("%w: it belongs to uid %d with mode %#o, and cannot be closed to others: %w; "+
			"name a directory on a bpf file system that is mounted writable", ErrExposed, st.Uid, mode, err)
	}
	return nil
}

// CheckUnchangeable fails with ErrExposed for a directory that others than the process's own user can change, or put another in its
// place. All may look into it.
func CheckUnchangeable(dir string) error {
	dir = filepath.Clean(dir)
	if err := checkParent(filepath.Dir(dir)); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && int(st.Uid) == os.Geteuid() && st.Mode&0o022 == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s belongs to uid %d with mode %#o, and this process runs as uid %d; look who made it, and remove it, or name another folder",
		ErrExposed, dir, st.Uid, st.Mode, os.Geteuid())
}

// checkParent rejects a directory in which others could put another in the place
// of an entry: one that belongs to neither root nor the process's own user, or that
// others may write to without the sticky bit.
func checkParent(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	mode := st.Mode & 0o7777
	owned := st.Uid == 0 || int(st.Uid) == os.Geteuid()
	if owned && (mode&0o022 == 0 || mode&unix.S_ISVTX != 0) {
		return nil
	}
	return fmt.Errorf("%w: %s, where it lies, belongs to uid %d with mode %#o, so that others can put a folder in its place; run `chown root %s && chmod 0700 %s`",
		ErrExposed, dir, st.Uid, mode, dir, dir)
}
