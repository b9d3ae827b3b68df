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
// for those that tests start, forbidden where the machine forbids namespaces, and probes in a
// process that asks the kernel whether it loads programs.
const (
	isolated  = "SKEP_TEST_ISOLATED"
	fresh     = "fresh"
	inside    = "inside"
	forbidden = "forbidden"
	probes    = "probes"
)

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
	case state == "" && os.Geteuid() == 0 && Hangs():
		// A test that asks the kernel for less than it needs would hang, too.
		fmt.Println("*** THE KERNEL HANGS: the tests of this package are SKIPPED ***")
		return 0
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
// container, or has none.
func isForbidden(err error) bool {
	return slices.ContainsFunc([]error{unix.EPERM, unix.EACCES, unix.ENODEV, unix.ENOSYS, unix.EROFS}, func(e error) bool { return errors.Is(err, e) })
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
func isolate() (code int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err = MountMissing(); err == nil {
			code, err = again()
		}
	}()
	<-done
	return code, err
}

// again runs this program in a cgroup of its own, in the mount namespace of the thread.
func again() (int, error) {
	root := CgroupRoot()
	own := filepath.Join(root, "skep-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(own, 0o755); err != nil {
		return 1, err
	}
	defer removeCgroups(own)
	dir, err := os.Open(own)
	if err != nil {
		return 1, err
	}
	defer func() { _ = dir.Close() }()
	self := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...)
	self.Env = append(os.Environ(), isolated+"="+fresh)
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The namespaces are unshared after the process came into its cgroup, which so is the root
	// of its cgroup namespace. This thread keeps its own mounts, to remove the cgroup.
	self.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET, Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP, Pdeathsig: syscall.SIGKILL,
		UseCgroupFD: true, CgroupFD: int(dir.Fd()),
	}
	err = self.Run()
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
		if err := unix.Mount(kind, dir, kind, 0, ""); err != nil {
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

// removeCgroups removes a cgroup with those below it.
func removeCgroups(root string) {
	for _, dir := range slices.Backward(folders(root)) {
		_ = os.Remove(dir)
	}
	_ = os.Remove(root)
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

// mounts are those of the process, such as network namespaces that have a name.
func mounts() map[string]bool {
	found := map[string]bool{}
	table, _ := os.ReadFile("/proc/self/mountinfo")
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
	own, _ := os.Readlink("/proc/self/ns/net")
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
