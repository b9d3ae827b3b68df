package process

import (
	"bufio"
	"fmt"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/need"
)

// TestARootThatAContainerMadeIsNotTheRuntimes has two processes change their root to an overlay: one
// that their parent mounted, as a container runtime does, and one of their own mount namespace.
func TestARootThatAContainerMadeIsNotTheRuntimes(t *testing.T) {
	need.Kernel(t)
	overlay := func() (at, command string) {
		at = t.TempDir()
		return at, fmt.Sprintf("mount -t overlay overlay -o lowerdir=/,upperdir=%s,workdir=%s %s", t.TempDir(), t.TempDir(), at)
	}
	enters := func(flags uintptr, command string) Process {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
		cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: flags}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		must(t, cmd.Start())
		t.Cleanup(func() {
			_ = in.Close()
			_ = cmd.Wait()
		})
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Skipf("SKIPPED: no overlay can be mounted here: %q, %v", line, err)
		}
		return see(t, cmd.Process.Pid)
	}
	const enter = `exec chroot %s sh -c 'echo in; read x'`
	runtimes, mount := overlay()
	if body, err := exec.CommandContext(t.Context(), "sh", "-c", mount).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no overlay can be mounted here: %s", body)
	}
	t.Cleanup(func() { _ = unix.Unmount(runtimes, unix.MNT_DETACH) })
	own, mountOwn := overlay()
	for sentence, c := range map[string]struct {
		of      Process
		outside bool
	}{
		"the runtime's": {enters(0, fmt.Sprintf(enter, runtimes)), true},
		"its own":       {enters(unix.CLONE_NEWNS, "mount --make-rprivate / && "+mountOwn+" && "+fmt.Sprintf(enter, own)), false},
	} {
		root, err := c.of.Root()
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(root.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		if is, err := c.of.IsMountedOutside(st.Dev); is != c.outside || err != nil {
			t.Errorf("%s is mounted outside: %v, %v", sentence, is, err)
		}
		_ = root.Close()
	}
}
