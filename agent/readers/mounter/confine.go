package mounter

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// confined is the environment variable of a process that has given up what a mounter does not need.
const confined = "SKEP_MOUNTER_CONFINED"

// Confine gives up all rights but those to mount and, where volumes have pins, to give these a group, and the network: the process starts itself
// again, in an empty network namespace. A container that mounts for its node is privileged, and has the node's network
// where another container of its pod needs that. Confine returns nil in the process that is confined.
func Confine(pins bool) error {
	if os.Getenv(confined) != "" {
		return nil
	}
	// What follows is of this thread alone, and exec(2) leaves no other.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("leave the network: %w", err)
	}
	kept := uint64(1) << unix.CAP_SYS_ADMIN
	if pins {
		kept |= 1 << unix.CAP_CHOWN
	}
	for c := 0; ; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil {
			break // the kernel has no more
		}
		if has == 1 && kept&(1<<c) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
				return fmt.Errorf("give up capability %d: %w", c, err)
			}
		}
	}
	data := [2]unix.CapUserData{}
	for i := range data {
		half := uint32(kept >> (32 * i))
		data[i] = unix.CapUserData{Effective: half, Permitted: half}
	}
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new rights: %w", err)
	}
	if err := unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), confined+"=1")); err != nil {
		return fmt.Errorf("start again: %w", err)
	}
	return nil
}
