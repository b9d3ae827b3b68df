package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/folder"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// fileMode is that of plain files, which all may read.
const fileMode = 0o644

// names are those of applications and namespaces: none is that of another folder.
var names = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)

// A BPF file system takes no dots in names, and those of applications have no + and no %.
var escape, unescape = strings.NewReplacer(".", "%2e"), strings.NewReplacer("%2e", ".")

// folder is that of an application.
func (r *Readers) folder(id v1alpha1.Identity) folder.Folder {
	name := id.Name
	if id.Namespace != "" {
		name = id.Namespace + "+" + id.Name
	}
	return folder.Folder{Dir: filepath.Join(r.Dir, id.Namespace, id.Name), Pins: filepath.Join(r.Dir, pinsFolder, escape.Replace(name)), Mode: fileMode}
}

// check returns an error where an application can have no folder.
func (r *Readers) check(id v1alpha1.Identity, hasFolder bool) error {
	switch {
	case r.Dir == "":
		return errors.New("maps are granted to groups, and this agent has no folder for readers; name one with --maps-dir")
	case !names.MatchString(id.Name) || id.Namespace != "" && !names.MatchString(id.Namespace):
		return fmt.Errorf("%s is no name for a folder", id)
	case !hasFolder:
		return fmt.Errorf("the folder of readers would be in that of the application %s of the cluster, which grants maps to groups, too; rename one of them",
			id.Namespace)
	}
	return nil
}

// prepare makes the folder of all applications, and mounts the BPF file system of their pins, where these are not there.
func (r *Readers) prepare() error {
	dir := filepath.Join(r.Dir, pinsFolder)
	if err := errors.Join(folder.MakeOpen(r.Dir), makeMountPoint(dir)); err != nil {
		return err
	}
	if err := pins.MountOpen(dir); err != nil {
		return fmt.Errorf("%w; maps that are granted to groups are pinned there, so have it mounted before the agent starts: `mount -t bpf -o mode=0755 bpf %s`",
			err, dir)
	}
	// One that was mounted without a mode lets others make folders.
	err := folder.MakeOpen(dir)
	if errors.Is(err, pins.ErrExposed) {
		err = errors.Join(os.Chmod(dir, 0o755), folder.MakeOpen(dir))
	}
	if err != nil {
		return err
	}
	return checkMounts("")
}

// lookAtMounts has folders go while others than root can make files on a BPF file system, also where nothing else changes. prepare sees to
// that of Skep's own pins.
func (r *Readers) lookAtMounts() {
	now := r.Clock()
	if !r.checked.IsZero() && now.Sub(r.checked) < checkAfter {
		return
	}
	r.checked, r.exposed = now, ""
	if err := checkMounts(filepath.Join(r.Dir, pinsFolder)); err != nil {
		r.exposed = err.Error()
	}
}

// checkMounts returns an error where others than root can make files on a BPF file system, but for one mount point. The kernel lets a
// descriptor be pinned that is only for reading, and the pin be opened for writing by who made it.
func checkMounts(except string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("bpf"))
	if err != nil {
		return fmt.Errorf("look for BPF file systems: %w", err)
	}
	for _, m := range mounts {
		var st unix.Stat_t
		err := unix.Stat(m.Mountpoint, &st)
		switch isReadOnly := slices.Contains(strings.Split(m.Options, ","), "ro"); {
		case errors.Is(err, fs.ErrNotExist), isReadOnly, m.Mountpoint == except:
		case err != nil:
			return fmt.Errorf("look who may make files on the BPF file system %s: %w", m.Mountpoint, err)
		case st.Uid != 0 || st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && st.Gid != 0:
			return fmt.Errorf("others than root can make files on the BPF file system %s: there, who may read a map makes it one that they may write; "+
				"run `chmod 0755 %s`, and have it mounted with mode=0700", m.Mountpoint, m.Mountpoint)
		}
	}
	return nil
}

// makeMountPoint makes a folder where there is none. What is mounted there may have any mode.
func makeMountPoint(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// found are the applications that have something below a folder, or may have.
func found(dir string) (all []v1alpha1.Identity) {
	for _, name := range foldersIn(dir) {
		if name != pinsFolder {
			all = append(all, clusterWide(name))
			for _, below := range foldersIn(filepath.Join(dir, name)) {
				all = append(all, inNamespace(name, below))
			}
		}
	}
	for _, name := range foldersIn(filepath.Join(dir, pinsFolder)) {
		if namespace, name, isOne := strings.Cut(unescape.Replace(name), "+"); isOne {
			all = append(all, inNamespace(namespace, name))
		} else {
			all = append(all, clusterWide(namespace))
		}
	}
	return all
}

func inNamespace(namespace, name string) v1alpha1.Identity {
	return v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: name}
}

// foldersIn are the names of the folders in a folder, which may not be there.
func foldersIn(dir string) (all []string) {
	if dir == "" {
		return nil
	}
	listed, _ := os.ReadDir(dir)
	for _, one := range listed {
		if one.IsDir() && (names.MatchString(one.Name()) || filepath.Base(dir) == pinsFolder || one.Name() == pinsFolder) {
			all = append(all, one.Name())
		}
	}
	return all
}

// Clear removes all readers' folders of a host, and the BPF file system of their pins where this process may unmount it.
func Clear(dir string) error {
	if dir == "" {
		return nil
	}
	r := Readers{Options: Options{Dir: dir}}
	var errs []error
	for _, id := range found(dir) {
		errs = append(errs, r.folder(id).Remove())
		if id.Namespace != "" {
			_ = os.Remove(filepath.Join(dir, id.Namespace))
		}
	}
	// It stays where it is mounted by the system, or something else is in it.
	_ = unix.Unmount(filepath.Join(dir, pinsFolder), unix.UMOUNT_NOFOLLOW)
	_, _ = os.Remove(filepath.Join(dir, pinsFolder)), os.Remove(dir)
	return errors.Join(errs...)
}
