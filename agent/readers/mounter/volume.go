package mounter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// target is the folder of a volume that the kubelet wants something mounted on.
const target = "mount"

// mark is the attribute of a tmpfs that the mounter made, and its value the record of its Mount. Only CAP_SYS_ADMIN
// of the node reads and writes it.
const mark = "trusted.skep.dev"

// errForeign is the error of a target that is another driver's.
var errForeign = errors.New("something else is mounted at the target, which is left alone")

// pinned is the folder of a BPF file system that a volume has.
const pinned = "pins"

// Bounds of a volume's tmpfs.
const (
	tmpfsBytes  = "1048576"
	tmpfsInodes = "1024"
)

// Nothing of a path may be a symlink, or lead up. Where notMounted is added, nothing of it is mounted below the first
// folder either.
const (
	beneath    = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	notMounted = unix.RESOLVE_NO_XDEV
)

// guarded are the attributes of each mount. A pod sees it read-only: neither root of a pod nor the owner of a file
// changes modes there, or names.
const guarded = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

// handles are descriptors that are closed together.
type handles []int

// keep adds a descriptor, unless there is an error.
func (h *handles) keep(fd int, err error) (int, error) {
	if err == nil {
		*h = append(*h, fd)
	}
	return fd, err
}

func (h *handles) close() { closeAll(*h) }

// open opens a folder below another one, without following anything.
func (h *handles) open(at int, path string, resolve uint64) (int, error) {
	return h.keep(unix.Openat2(at, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: beneath | resolve}))
}

// procPath is a path to what a descriptor is of.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// pods is the kubelet's folder of pods.
type pods struct {
	fd int
	// path is the folder's, as mountinfo has it.
	path string
	// scratch is another folder, on which one file system at a time is mounted by who holds making.
	scratch string
	making  *sync.Mutex
	// pins is whether volumes have any.
	pins bool
}

// openPods opens the folder. What is mounted below it has to come to the node.
func openPods(path, scratch string, pins bool) (p pods, err error) {
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return p, err
	}
	p.scratch, p.making, p.pins = scratch, new(sync.Mutex), pins
	p.fd, err = unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p, fmt.Errorf("open the kubelet's folder of pods, %s: %w", path, err)
	}
	if p.path, err = filepath.EvalSymlinks(procPath(p.fd)); err == nil {
		err = p.isShared()
	}
	if err != nil {
		return p, errors.Join(err, p.close())
	}
	return p, nil
}

func (p pods) close() error { return unix.Close(p.fd) }

// isShared returns an error unless mounts below the folder propagate.
func (p pods) isShared() error {
	id, err := mountID(p.fd)
	if err != nil {
		return err
	}
	found, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) { return uint64(i.ID) != id, uint64(i.ID) == id })
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	if len(found) != 1 || !strings.Contains(found[0].Optional, "shared:") {
		return fmt.Errorf("what is mounted below %s would not be seen on the node; give the container the folder with mountPropagation: Bidirectional", p.path)
	}
	return nil
}

// mountID is the number of the mount that a descriptor is on.
func mountID(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, fmt.Errorf("read the mount of a folder: %w", err)
	}
	return st.Mnt_id, nil
}

// sameMount reports whether two descriptors are on one mount.
func sameMount(a, b int) (bool, error) {
	one, err := mountID(a)
	if err != nil {
		return false, err
	}
	other, err := mountID(b)
	return one == other, err
}

// isType reports whether a descriptor is on a file system of a type.
func isType(fd int, magic int64) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return false, fmt.Errorf("read the type of a file system: %w", err)
	}
	return st.Type == magic, nil
}

// place is the target of a volume.
type place struct {
	handles
	// folder is the kubelet's of the volume, and root what its target is, or what is mounted there.
	folder, root int
	// mounted reports whether a file system of the mounter's is mounted there, with the record.
	mounted bool
	record  []byte
}

// find opens the target of a volume, which is made where make is set. The error wraps ENOENT where it is not there, and
// is another one where something is mounted that the mounter did not mount. The place is to be closed in any case.
func (p pods) find(v Volume, create bool) (at place, err error) {
	if at.folder, err = at.open(p.fd, v.path(), notMounted); err != nil {
		return at, fmt.Errorf("open the kubelet's folder of the volume: %w", err)
	}
	if create {
		if err := unix.Mkdirat(at.folder, target, 0o750); err != nil && !errors.Is(err, unix.EEXIST) {
			return at, fmt.Errorf("make the target: %w", err)
		}
	}
	if at.root, err = at.open(at.folder, target, 0); err != nil {
		return at, fmt.Errorf("open the target: %w", err)
	}
	bare, err := sameMount(at.folder, at.root)
	if err != nil || bare {
		return at, err
	}
	if at.record, err = recordOf(at.root); err != nil {
		return at, err
	}
	at.mounted = true
	return at, nil
}

// recordOf reads the mark of a mount of the mounter's, and returns an error for any other.
func recordOf(root int) ([]byte, error) {
	is, err := isType(root, unix.TMPFS_MAGIC)
	if err != nil {
		return nil, err
	}
	record := make([]byte, MaxRecord)
	n := 0
	if is {
		n, err = unix.Getxattr(procPath(root), mark, record)
	}
	if !is || errors.Is(err, unix.ENODATA) {
		return nil, errForeign
	}
	if err != nil {
		return nil, fmt.Errorf("read the mark of what is mounted: %w", err)
	}
	return record[:n], nil
}

// mount mounts a volume's tmpfs where it is not mounted, and its BPF file systems. One that was made without pins gets none.
func (p pods) mount(v Volume, group uint32, record []byte) error {
	at, err := p.find(v, true)
	defer at.close()
	if err != nil {
		return err
	}
	if !at.mounted {
		if at.root, err = at.tmpfs(group, record, p.pins); err != nil {
			return err
		}
	} else if err := at.again(group, record); err != nil {
		return err
	}
	if !p.pins {
		return nil
	}
	for _, name := range []string{ReadOnly, Writable} {
		if err := at.bpf(name, p, group); err != nil {
			return err
		}
	}
	return nil
}

// again gives what is mounted already another record.
func (at *place) again(group uint32, record []byte) error {
	var st unix.Stat_t
	if err := unix.Fstat(at.root, &st); err != nil {
		return fmt.Errorf("read the group of what is mounted: %w", err)
	}
	if st.Gid != group {
		return fmt.Errorf("it is mounted for group %d, not %d; delete the pod", st.Gid, group)
	}
	w, err := at.writable(at.root)
	if err == nil {
		err = unix.Setxattr(procPath(w), mark, record, 0)
	}
	if err != nil {
		return fmt.Errorf("mark what is mounted: %w", err)
	}
	return nil
}

// setting is a parameter of a file system.
type setting struct{ key, value string }

// detached makes a file system that is mounted nowhere yet.
func (h *handles) detached(kind string, settings ...setting) (int, error) {
	fs, err := h.keep(unix.Fsopen(kind, unix.FSOPEN_CLOEXEC))
	for _, s := range append(settings, setting{"source", "skep"}) {
		if err == nil {
			err = unix.FsconfigSetString(fs, s.key, s.value)
		}
	}
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		return -1, fmt.Errorf("make a file system of type %s: %w", kind, err)
	}
	m, err := h.keep(unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, guarded))
	if err != nil {
		return -1, fmt.Errorf("make a mount of type %s: %w", kind, err)
	}
	return m, nil
}

// attach mounts what detached returned on a folder, read-only.
func attach(mount, on int) error {
	err := unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if err == nil {
		err = unix.MoveMount(mount, "", on, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	}
	if err != nil {
		return fmt.Errorf("mount at the target: %w", err)
	}
	return nil
}

// tmpfs mounts a tmpfs on the target, which has its mark and its folders for pins from the first moment, and returns its root.
// New files there get the group from the folder.
func (at *place) tmpfs(group uint32, record []byte, pins bool) (int, error) {
	m, err := at.detached("tmpfs", setting{"size", tmpfsBytes}, setting{"nr_inodes", tmpfsInodes}, setting{"mode", "2750"},
		setting{"uid", "0"}, setting{"gid", strconv.FormatUint(uint64(group), 10)})
	if err != nil {
		return -1, err
	}
	err = unix.Setxattr(procPath(m), mark, record, 0)
	for _, name := range []string{ReadOnly, Writable} {
		if err == nil && pins {
			err = unix.Mkdirat(m, name, 0o750)
		}
	}
	if err != nil {
		return -1, fmt.Errorf("prepare the volume: %w", err)
	}
	return m, attach(m, at.root)
}

// bpf mounts a BPF file system on a folder of the volume, unless it is mounted there or there is no such folder.
func (at *place) bpf(name string, p pods, group uint32) error {
	on, err := at.open(at.root, name, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s of the volume: %w", name, err)
	}
	if bare, err := sameMount(at.root, on); err != nil || !bare {
		return err
	}
	p.making.Lock()
	m, err := at.pinFolder(p.scratch, group)
	p.making.Unlock()
	if err != nil {
		return fmt.Errorf("prepare %s of the volume: %w", name, err)
	}
	return attach(m, on)
}

// pinFolder makes a BPF file system with a folder, and returns a mount of that folder: into each root the kernel puts
// programs that list all maps and programs of the node (bpf_preload), which cannot be removed. A kernel before 6.15 takes
// no folder of what is mounted nowhere, so it is mounted for that time.
func (h *handles) pinFolder(scratch string, group uint32) (_ int, err error) {
	m, err := h.detached("bpf", setting{"mode", "0700"})
	if err != nil {
		return -1, err
	}
	on, err := h.keep(unix.Open(scratch, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0))
	if err == nil {
		err = unix.MoveMount(m, "", on, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	}
	if err != nil {
		return -1, err
	}
	defer func() { err = errors.Join(err, unix.Unmount(procPath(m), unix.MNT_DETACH)) }()
	err = unix.Mkdirat(m, pinned, 0o750)
	if err == nil {
		// New pins get the group from the folder. Once that is another one, the kernel takes the bit away from who is not in it.
		err = unix.Fchmodat(m, pinned, unix.S_ISGID|0o750, 0)
	}
	if err == nil {
		err = unix.Fchownat(m, pinned, 0, int(group), unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return -1, err
	}
	return h.keep(unix.OpenTree(m, pinned, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW))
}

// reconfigure makes the whole file system read-only ("ro") or not ("rw"), for all mounts of it. Only that keeps root of
// a pod from opening a map for writing: its rights go beyond modes, and bpf(2) does not ask whether a mount is read-only.
func (h *handles) reconfigure(fd int, flag string) error {
	fs, err := h.keep(unix.Fspick(fd, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH))
	if err == nil {
		err = unix.FsconfigSetFlag(fs, flag)
	}
	if err == nil {
		err = unix.FsconfigReconfigure(fs)
	}
	if err != nil {
		return fmt.Errorf("make a file system %s: %w", flag, err)
	}
	return nil
}

// writable returns a mount of what a descriptor is of that is not read-only, and that is mounted nowhere.
func (h *handles) writable(fd int) (int, error) {
	w, err := h.keep(unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH))
	if err == nil {
		err = unix.MountSetattr(w, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE})
	}
	if err != nil {
		return -1, fmt.Errorf("open the volume for writing: %w", err)
	}
	return w, nil
}

// unmount unmounts a volume, and takes its target away. First the pins go: a container that has not ended keeps its
// mount, and would keep the maps.
func (p pods) unmount(v Volume) error {
	at, err := p.find(v, false)
	defer at.close()
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if at.mounted {
		unpinned := at.pin(nil)
		if err := unix.Unmount(procPath(at.root), unix.MNT_DETACH); err != nil {
			return errors.Join(fmt.Errorf("unmount: %w", err), unpinned)
		}
	}
	if err := unix.Unlinkat(at.folder, target, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the target: %w", err)
	}
	return nil
}

// mounted are the volumes that may be mounted, in order.
func (p pods) mounted() ([]Volume, error) {
	var found []Volume
	_, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		if v, is := p.volume(i); is {
			found = append(found, v)
		}
		return true, false
	})
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	slices.SortFunc(found, compare)
	return slices.Compact(found), nil
}

// volume is the volume that a mount is of, by its place and type.
func (p pods) volume(i *mountinfo.Info) (Volume, bool) {
	rest, below := strings.CutPrefix(i.Mountpoint, p.path+"/")
	if !below || i.FSType != "tmpfs" {
		return Volume{}, false
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 5 {
		return Volume{}, false
	}
	v := Volume{Pod: parts[0], Name: parts[3]}
	return v, v.Check() == nil && rest == v.path()+"/"+target
}

// look is what is mounted of a volume. The error wraps ErrNotMounted where the mounter mounted nothing there.
func (p pods) look(v Volume) (Mounted, error) {
	at, err := p.find(v, false)
	defer at.close()
	if errors.Is(err, unix.ENOENT) || errors.Is(err, errForeign) || err == nil && !at.mounted {
		return Mounted{}, ErrNotMounted
	}
	if err != nil {
		return Mounted{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(at.root, &st); err != nil {
		return Mounted{}, err
	}
	return Mounted{Volume: v, Group: st.Gid, Record: at.record}, nil
}
