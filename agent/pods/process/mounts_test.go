package process

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/need"
)

// TestARootThatAContainerMadeIsNotTheRuntimes has processes change their root to an overlay that their parent mounted, as a container
// runtime does, or that is of their own mount namespace. What is known of mounts is true for whichever is asked for next.
func TestARootThatAContainerMadeIsNotTheRuntimes(t *testing.T) {
	need.Kernel(t)
	known := new(Mounts)
	t.Cleanup(known.Forget)
	isOutside := func(what string, is Process, outside bool) {
		t.Helper()
		for _, known := range []*Mounts{known, known, nil} {
			if got, err := is.IsMountedOutside(deviceOf(t, is), known); got != outside || err != nil {
				t.Errorf("the root that is %s is mounted outside: %v, %v", what, got, err)
			}
		}
	}
	const enter = `exec chroot %s sh -c 'echo in; read x'`
	runtimes := mounted(t)
	first := enters(t, 0, fmt.Sprintf(enter, runtimes))
	isOutside("the runtime's", first, true)
	own, mountOwn := overlay(t)
	isOutside("its own", enters(t, unix.CLONE_NEWNS, "mount --make-rprivate / && "+mountOwn+" && "+fmt.Sprintf(enter, own)), false)
	isOutside("the runtime's, as before", first, true)
	later := mounted(t)
	isOutside("the runtime's, mounted after others were asked for", enters(t, 0, fmt.Sprintf(enter, later)), true)
	const apart = `chroot %s sh -c 'echo in; exec sleep 1000' & `
	isOutside("one that the parent has no more in its own root",
		childOf(t, enters(t, 0, fmt.Sprintf(apart+`exec chroot %s sh -c "echo in; read x; kill $!"`, runtimes, later))), false)
	isOutside("one that the parent has no more in its mount namespace",
		childOf(t, enters(t, 0, fmt.Sprintf(apart+`exec unshare --mount sh -c "umount -l %[1]s && echo in; read x; kill $!"`, runtimes))), false)
	if err := unix.Unmount(runtimes, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	self, err := Open(os.Getpid())
	must(t, err)
	defer self.Close()
	of, err := self.view()
	must(t, err)
	must(t, second(known.has(self, 0)))
	must(t, unix.Unmount(later, unix.MNT_DETACH))
	for range 2 {
		// Of two that ask, the kernel says it to one.
		if _, isKnown := known.known(of, 0); isKnown {
			t.Error("a table that changed is known")
		}
	}
	isOutside("one that the runtime mounts no more", first, false)
}

// TestATableThatIsNotReadHoldsUpNobodyElse has the table of one process be read for as long as a file system does not answer.
func TestATableThatIsNotReadHoldsUpNobodyElse(t *testing.T) {
	hung := t.TempDir()
	must(t, errors.Join(os.Mkdir(hung+"/ns", 0o755), os.Mkdir(hung+"/root", 0o755)))
	must(t, errors.Join(os.WriteFile(hung+"/ns/mnt", nil, 0o600), unix.Mkfifo(hung+"/mountinfo", 0o600)))
	dir, err := os.Open(hung)
	must(t, err)
	self, err := Open(os.Getpid())
	must(t, err)
	var root unix.Stat_t
	must(t, unix.Stat("/", &root))
	known, read, others := new(Mounts), make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := known.has(&Folder{dir}, 1)
		read <- err
	}()
	// It is opened once somebody reads it, who waits for what it says.
	table, err := os.OpenFile(hung+"/mountinfo", os.O_WRONLY, 0)
	must(t, err)
	go func() {
		is, err := known.has(self, root.Dev)
		if !is {
			err = errors.Join(err, errors.New("the root is not mounted"))
		}
		known.Forget()
		others <- err
	}()
	select {
	case err := <-others:
		must(t, err)
	case <-time.After(time.Minute):
		t.Error("another one waits")
	}
	must(t, table.Close())
	must(t, <-read)
	known.Forget()
	must(t, dir.Close())
	self.Close()
}

func second(_ bool, err error) error { return err }

// overlay is where one can be mounted, and the command for that.
func overlay(t *testing.T) (at, command string) {
	at = t.TempDir()
	return at, fmt.Sprintf("mount -t overlay overlay -o lowerdir=/,upperdir=%s,workdir=%s %s", t.TempDir(), t.TempDir(), at)
}

// mounted is an overlay that this process has mounted.
func mounted(t *testing.T) string {
	t.Helper()
	at, mount := overlay(t)
	if body, err := exec.CommandContext(t.Context(), "sh", "-c", mount).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no overlay can be mounted here: %s", body)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	return at
}

// enters starts a command, and returns its process once it printed its lines.
func enters(t *testing.T, flags uintptr, command string) Process {
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
	lines := bufio.NewReader(out)
	for range strings.Count(command, "echo") {
		if line, err := lines.ReadString('\n'); err != nil {
			t.Skipf("SKIPPED: no overlay can be mounted here: %q, %v", line, err)
		}
	}
	return see(t, cmd.Process.Pid)
}

// childOf is the child of a process that has one.
func childOf(t *testing.T, p Process) Process {
	t.Helper()
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.PID))
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(body)))
	must(t, err)
	return see(t, pid)
}

// deviceOf is the file system of a process's root.
func deviceOf(t *testing.T, p Process) uint64 {
	t.Helper()
	root, err := p.Root()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	var st unix.Stat_t
	must(t, unix.Fstat(int(root.Fd()), &st))
	return st.Dev
}
