// Package running says of which kind the kernel is that tests run on. It reads its release
// alone, and probes nothing.
package running

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// MayLack reports whether the kernel may be built without a hook that its version has.
// Debian's, which virtual machines boot, are built with all but those of fprobes in 6.1
// (CONFIG_FPROBE). Nothing is known of others.
func MayLack(t testing.TB, hook string) bool {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	if !strings.Contains(release, "-cloud-") {
		return true
	}
	return strings.HasPrefix(release, "6.1.") && slices.Contains([]string{"kprobe.multi", "kretprobe.multi"}, hook)
}
