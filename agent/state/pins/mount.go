package pins

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Mount mounts a BPF file system on a folder that is on none, as systemd does: for
// root alone. What is mounted in a container goes with it, unless the mount
// propagates to the host.
func Mount(dir string) error { return mount(dir, "mode=0700") }

// MountOpen is Mount of a BPF file system that all may look into. It may be there already.
func MountOpen(dir string) error { return mount(dir, "mode=0755") }

func mount(dir, options string) error {
	on, err := onBPFFS(dir)
	if err != nil || on {
		return err
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return fmt.Errorf("mount a bpf file system at %s: %w", dir, err)
	}
	return nil
}

// onBPFFS reports whether a folder is on a BPF file system.
func onBPFFS(dir string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, fmt.Errorf("read file system of %s: %w", dir, err)
	}
	return st.Type == unix.BPF_FS_MAGIC, nil
}
