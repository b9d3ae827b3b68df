// Package drop takes capabilities away from a test for a while, so that the
// real kernel rejects what it would reject a process without them. It adds none,
// and is for tests alone.
package drop

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Capabilities runs f on a thread without the effective capabilities named by
// their numbers. What f starts elsewhere has them still.
func Capabilities(t testing.TB, f func(), lost ...int) {
	t.Helper()
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(&header, &had[0]); err != nil {
		t.Fatalf("read capabilities: %v", err)
	}
	now := had
	for _, c := range lost {
		now[c/32].Effective &^= 1 << (c % 32)
	}
	if err := unix.Capset(&header, &now[0]); err != nil {
		t.Fatalf("drop capabilities: %v", err)
	}
	defer func() {
		// A thread that does not get them back ends with the test, being locked.
		if err := unix.Capset(&header, &had[0]); err != nil {
			t.Errorf("take capabilities back: %v", err)
			return
		}
		runtime.UnlockOSThread()
	}()
	f()
}
