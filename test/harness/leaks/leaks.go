// Package leaks runs the tests of a package that works with the kernel, and fails them for
// what they leave behind.
//
// As root, they run in a process of its own with a network namespace, a BPF file system and
// a cgroup of its own, and with the file systems that the machine has not mounted. So what is
// found there after the tests is theirs: descriptors, pins, links, mounts, network namespaces,
// cgroups and processes. A link that neither a descriptor nor a pin holds is gone. Nothing
// stays mounted on the machine.
package leaks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// isolated is the environment variable of the process that tests run in: fresh, inside
// for those that tests start, forbidden where the machine forbids namespaces, leftOut where the
// kernel was known to hang before the tests, and probes in a process that asks it whether it
// loads programs.
const (
	isolated  = "SKEP_TEST_ISOLATED"
	fresh     = "fresh"
	inside    = "inside"
	forbidden = "forbidden"
	leftOut   = "left out"
	probes    = "probes"
)

// LeftOut is the entry of the environment by which packages that work with the kernel are left
// out, since it is known to hang.
const LeftOut = isolated + "=" + leftOut

// The places of the file systems that tests have.
const (
	bpffs   = "/sys/fs/bpf"
	tracefs = "/sys/kernel/tracing"
	unified = "/sys/fs/cgroup"
	beside  = "/sys/fs/cgroup/unified"
)

// grace is how long the tests' goroutines may take to let go of what they have.
const grace = 10 * time.Second

// Isolated reports whether tests run as root in namespaces of their own. Others skip what
// needs the kernel.
func Isolated() bool { return os.Getenv(isolated) == fresh || os.Getenv(isolated) == inside }

// Forbidden reports whether the machine forbids namespaces and mounts even to root, as
// containers do.
func Forbidden() bool { return os.Getenv(isolated) == forbidden }

// Main is what a package's TestMain does. It never returns.
func Main(m *testing.M) { os.Exit(Run(m.Run)) }

// M is a testing.M whose tests run as those of Main, for who runs it by an interface.
type M struct{ *testing.M }

// Run runs the tests, and returns their exit code.
func (m M) Run() int { return Run(m.M.Run) }

// Run is Main for tests that need something around them. It returns the exit code.
func Run(tests func() int) int { return run(tests, check) }

// Apart is Run for whole clusters, whose connections and processes end with them: it does not look
// for what they leave behind.
func Apart(tests func() int) int {
	return run(tests, func(tests func() int) (int, error) {
		if err := settle(); err != nil {
			return 1, err
		}
		return tests(), nil
	})
}

// run runs the tests: isolatedly where they are in namespaces of their own.
func run(tests func() int, isolatedly func(tests func() int) (int, error)) int {
	var code int
	var err error
	MaybeProbe()
	switch state := os.Getenv(isolated); {
	case state == fresh:
		code, err = isolatedly(tests)
	case state == inside && len(os.Args) == 1:
		// It would run all tests, which start it again, without end.
		err = errors.New("a test started this binary for something else than tests, and nothing took it: TestMain calls MaybeChild, or its like, before Main")
	case state == leftOut:
		// A test that asks the kernel for less than it needs would hang, too.
		fmt.Println("*** THE KERNEL HANGS: this package is LEFT OUT ***")
		return 0
	case state == "" && os.Geteuid() == 0 && Hangs():
		err = errors.New("the kernel hangs: it did not load an empty program within a minute; see dmesg, and restart the machine")
	case state == "" && os.Geteuid() == 0:
		code, err = isolate()
	default:
		return tests()
	}
	if isForbidden(err) {
		fmt.Fprintf(os.Stderr, "*** NO NAMESPACES: this machine forbids them even to root; tests of the kernel are SKIPPED: %v ***\n", err)
		if err = os.Setenv(isolated, forbidden); err == nil {
			return tests()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "leaks:", err)
		code = max(code, 1)
	}
	return code
}

// isForbidden reports whether the kernel refused namespaces or file systems as it does in a
// container, in a chroot without /sys, or where a limit of namespaces is 0, or has none.
func isForbidden(err error) bool {
	return slices.ContainsFunc([]error{unix.EPERM, unix.EACCES, unix.ENODEV, unix.ENOSYS, unix.EROFS, unix.ENOENT, unix.ENOSPC, unix.EINVAL},
		func(e error) bool { return errors.Is(err, e) })
}

// Allowed reports whether this process may make the namespaces and mounts that tests of the
// kernel have.
func Allowed() bool {
	return !isForbidden(onThread(MountMissing))
}

// onThread calls a function on a thread that ends with it.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// NetworkNamespace gives the test's thread a network namespace of its own, until the test
// ends. The thread is brought back: the first one of a process does not end with a test.
func NetworkNamespace(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			runtime.UnlockOSThread()
		}
		if err := errors.Join(err, own.Close()); err != nil {
			t.Errorf("return to the former network namespace: %v", err)
		}
	})
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make network namespace: %v", err)
	}
}

// isolate runs this program again, in namespaces and a cgroup of its own. The file systems
// are mounted by a thread that ends with this function, in a namespace that the process
// inherits from it: its cgroup has to be made before it starts.
func isolate() (int, error) {
	var code int
	err := onThread(func() error {
		err := MountMissing()
		if err == nil {
			code, err = again()
		}
		return err
	})
	return code, err
}

// again runs this program in a cgroup of its own, in the mount namespace of the thread.
func again() (int, error) {
	root := CgroupRoot()
	own := filepath.Join(root, "skep-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(own, 0o755); err != nil {
		return 1, err
	}
	dir, err := os.Open(own)
	if err != nil {
		return 1, err
	}
	defer func() { _ = dir.Close() }()
	// It ends all processes of a cgroup and those below it, since Linux 5.14.
	kill, err := os.OpenFile(filepath.Join(own, "cgroup.kill"), os.O_WRONLY, 0)
	if err != nil {
		return 1, err
	}
	defer func() {
		_, _ = kill.WriteString("1")
		_ = kill.Close()
		removeCgroups(own)
	}()
	self := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...)
	self.Env = append(os.Environ(), isolated+"="+fresh)
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The namespaces are unshared after the process came into its cgroup, which so is the root
	// of its cgroup namespace. This thread keeps its own mounts, to remove the cgroup.
	self.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET, Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP, Pdeathsig: syscall.SIGKILL,
		UseCgroupFD: true, CgroupFD: int(dir.Fd()),
	}
	// An interrupt ends the tests with all that they started, which may be in groups of their own.
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, unix.SIGINT, unix.SIGTERM)
	go func() {
		if _, ok := <-interrupted; ok {
			_, _ = kill.WriteString("1")
		}
	}()
	err = self.Run()
	signal.Stop(interrupted)
	close(interrupted)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// MountMissing gives the thread a mount namespace with what tests of the kernel read and
// write: a BPF file system of their own, and tracefs and cgroup2 where there is none.
func MountMissing() error {
	err := unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	missing := map[string]string{bpffs: "bpf"}
	if _, err := os.Stat(filepath.Join(tracefs, "events")); err != nil {
		missing[tracefs] = "tracefs"
	}
	if CgroupRoot() == "" {
		missing[place()] = "cgroup2"
	}
	for dir, kind := range missing {
		options := ""
		if kind == "bpf" {
			// As on a host, others make no pins there.
			options = "mode=0755"
		}
		if err := unix.Mount(kind, dir, kind, 0, options); err != nil {
			return fmt.Errorf("mount %s for tests: %w", dir, err)
		}
	}
	return nil
}

// place is where cgroup2 is mounted where it is not: beside the hierarchies of version 1 where
// there is a folder for it.
func place() string {
	if _, err := os.Stat(beside); err == nil {
		return beside
	}
	return unified
}

// CgroupRoot is where cgroup2 is mounted: where tests are isolated, it is the root of their own
// part of the hierarchy. It is empty where cgroup2 is not mounted.
func CgroupRoot() string {
	for _, root := range []string{beside, unified} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err == nil {
			return root
		}
	}
	return ""
}

// removeCgroups removes a cgroup whose processes were killed, with those below it.
func removeCgroups(root string) {
	for end := time.Now().Add(grace); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, dir := range slices.Backward(folders(root)) {
			_ = os.Remove(dir)
		}
		// A process is in it until it is gone.
		if err := os.Remove(root); !errors.Is(err, unix.EBUSY) {
			return
		}
	}
}

// folders are the folders below a root, each before those in it.
func folders(root string) []string {
	var found []string
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != root {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// check runs the tests and looks for what is there after them and was not before.
func check(tests func() int) (int, error) {
	if err := settle(); err != nil {
		return 1, err
	}
	before := held()
	code := tests()
	if code != 0 {
		return code, nil
	}
	var left []string
	for end := time.Now().Add(grace); ; time.Sleep(10 * time.Millisecond) {
		left = left[:0]
		for what := range held() {
			if !before[what] {
				left = append(left, what)
			}
		}
		if len(left) == 0 {
			return 0, nil
		}
		if time.Now().After(end) {
			break
		}
	}
	slices.Sort(left)
	return 1, fmt.Errorf("the tests left behind:\n  %s", strings.Join(left, "\n  "))
}

// settle gives the process a view of its cgroup alone, and a loopback interface that is up. Those
// that it starts are inside.
func settle() error {
	if err := os.Setenv(isolated, inside); err != nil {
		return err
	}
	root := CgroupRoot()
	// The kernel mounts a file system on itself not twice.
	err := unix.Unmount(root, unix.MNT_DETACH)
	if err == nil {
		err = unix.Mount("cgroup2", root, "cgroup2", 0, "")
	}
	if err != nil {
		return fmt.Errorf("mount the tests' cgroup: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set up the loopback interface: %w", err)
	}
	return nil
}

// held is all that tests can leave behind.
func held() map[string]bool {
	all := map[string]bool{}
	for _, found := range []map[string]bool{descriptors(), pins(), cgroups(), mounts(), threads(), children()} {
		maps.Copy(all, found)
	}
	return all
}

// descriptors are the open ones, but those of Go's poller, and those by which envtest keeps
// its ports from other processes until this one ends.
func descriptors() map[string]bool {
	found := map[string]bool{}
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		what, err := os.Readlink(link)
		if err != nil || what == "anon_inode:[eventpoll]" || what == "anon_inode:[eventfd]" || strings.Contains(what, "/kubebuilder-envtest/port-") {
			continue
		}
		if info, err := os.ReadFile(strings.Replace(link, "/fd/", "/fdinfo/", 1)); err == nil && strings.HasPrefix(what, "anon_inode:bpf") {
			what += " (" + strings.Join(strings.Fields(string(info)), " ") + ")"
		}
		found["descriptor "+filepath.Base(link)+" of "+what] = true
	}
	return found
}

// pins are the files of the BPF file system.
func pins() map[string]bool {
	found := map[string]bool{}
	_ = filepath.WalkDir(bpffs, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != bpffs {
			found["pin "+path] = true
		}
		return nil
	})
	return found
}

func cgroups() map[string]bool {
	found := map[string]bool{}
	if root := CgroupRoot(); root != "" {
		for _, dir := range folders(root) {
			found["cgroup "+dir] = true
		}
	}
	return found
}

// mounts are those of the process, such as network namespaces that have a name. The process's
// first thread does not end with a test that gave it a mount namespace, so it is not asked.
func mounts() map[string]bool {
	found := map[string]bool{}
	table, _ := os.ReadFile("/proc/thread-self/mountinfo")
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			found["mount "+fields[0]+" of "+fields[3]+" on "+fields[4]] = true
		}
	}
	return found
}

// threads are those in another network namespace than the process.
func threads() map[string]bool {
	found := map[string]bool{}
	own, _ := os.Readlink("/proc/thread-self/ns/net")
	tasks, _ := filepath.Glob("/proc/self/task/*/ns/net")
	for _, task := range tasks {
		if ns, err := os.Readlink(task); err == nil && ns != own {
			found["a thread in network namespace "+ns] = true
		}
	}
	return found
}

// children are the processes that were started and not waited for.
func children() map[string]bool {
	found := map[string]bool{}
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		pids, _ := os.ReadFile(list)
		for pid := range strings.FieldsSeq(string(pids)) {
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			found["process "+pid+" "+strings.TrimSpace(string(name))] = true
		}
	}
	return found
}
