package process

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// IsMountedOutside reports whether the parent of the process has a mount of the file system with the
// device number. The parent of a container's first process is the runtime's, which mounted the
// container's root. What the container mounts, also in namespaces of its own, the parent does not see.
// Nil known reads the table of the parent for this answer alone.
func (p Process) IsMountedOutside(device uint64, known *Mounts) (bool, error) {
	now, err := Open(p.PID)
	if err != nil {
		return false, err
	}
	defer now.Close()
	if err := now.Check(p); err != nil {
		return false, err
	}
	parent, err := now.Parent()
	if err != nil {
		return false, err
	}
	above, err := Open(parent)
	if err != nil {
		return false, err
	}
	defer above.Close()
	found, err := known.has(above, device)
	// Another process may have the parent's id by now.
	if again, checkErr := now.Parent(); checkErr != nil || again != parent {
		return false, errors.Join(ErrOther, checkErr)
	}
	return found, err
}

// Mounts keeps the table of mounts that was read last, until Forget. A thousand containers have thousands of mounts, and one
// runtime: its table is read once for all as long as the kernel reports no change of it. Any goroutine may call its methods, and
// waits for no table that another one reads: the kernel asks a file system for its options, and one may not answer.
type Mounts struct {
	mu   sync.Mutex
	last *table
}

// table has the file systems in a table of mounts, and the file by which the kernel reports its changes.
type table struct {
	of      view
	devices map[uint64]bool
	file    *os.File
}

// view is what decides which mounts a process sees: its mount namespace, and its root in that.
type view struct{ namespace, mount, root uint64 }

// Forget closes the table, which keeps the mount namespace that it is of.
func (m *Mounts) Forget() { m.keep(nil) }

// keep has a table take the place of the one that there is.
func (m *Mounts) keep(t *table) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replace(t)
}

func (m *Mounts) replace(t *table) {
	if m.last != nil {
		_ = m.last.file.Close()
	}
	m.last = t
}

// has reports whether the process of a folder has a mount of the file system.
func (m *Mounts) has(process *Folder, device uint64) (bool, error) {
	of, err := process.view()
	if m == nil || err != nil {
		m = new(Mounts)
		defer m.Forget()
	}
	if found, isKnown := m.known(of, device); isKnown {
		return found, nil
	}
	t, err := process.mounts()
	if err != nil {
		return false, err
	}
	t.of = of
	m.keep(t)
	return t.devices[device], nil
}

// known is what the table says that was read last. isKnown is false where it is of another view, or changed.
func (m *Mounts) known(of view, device uint64) (found, isKnown bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil || m.last.of != of {
		return false, false
	}
	if m.last.isChanged() {
		// The kernel says so once.
		m.replace(nil)
		return false, false
	}
	return m.last.devices[device], true
}

// mounts reads the table of the process.
func (f *Folder) mounts() (*table, error) {
	file, err := f.open("mountinfo", unix.O_RDONLY)
	if err != nil {
		return nil, denied(err)
	}
	// What the kernel reports from here on is what changed since this was opened.
	t := &table{file: file, devices: map[uint64]bool{}}
	if _, err := mountinfo.GetMountsFromReader(file, func(one *mountinfo.Info) (skip, stop bool) {
		t.devices[unix.Mkdev(uint32(one.Major), uint32(one.Minor))] = true
		return true, false
	}); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return t, nil
}

// isChanged reports whether the table is another one than when that was asked last, or was opened (mounts_poll of fs/proc_namespace.c).
func (t *table) isChanged() bool {
	poll := []unix.PollFd{{Fd: int32(t.file.Fd()), Events: unix.POLLPRI}}
	_, err := unix.Poll(poll, 0)
	return err != nil || poll[0].Revents&(unix.POLLPRI|unix.POLLERR) != 0
}

// view returns what decides which mounts the process sees.
func (f *Folder) view() (of view, err error) {
	var namespace unix.Stat_t
	var root unix.Statx_t
	err = errors.Join(unix.Fstatat(int(f.dir.Fd()), "ns/mnt", &namespace, 0),
		unix.Statx(int(f.dir.Fd()), "root", unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_MNT_ID, &root))
	if err == nil && root.Mask&unix.STATX_MNT_ID == 0 {
		err = fmt.Errorf("look at the root of a process: %w", errors.ErrUnsupported)
	}
	return view{namespace.Ino, root.Mnt_id, root.Ino}, err
}
