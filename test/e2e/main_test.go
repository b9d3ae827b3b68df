package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/containerd"
	"github.com/skep-dev/skep/test/harness/controlplane"
	helmtest "github.com/skep-dev/skep/test/harness/helm"
	"github.com/skep-dev/skep/test/harness/leaks"
)

// The test runs in three processes. The one that go test starts builds, makes
// the namespaces, and clears up. In them runs the first process, with which all
// of them end, whatever ends it; and the one that tests.
const (
	stage      = "SKEP_E2E_STAGE"
	stageFirst = "first"
	// stageMounted has the file systems that the machine has not mounted.
	stageMounted = "mounted"
	stageTest    = "test"
	// binaries names the folder of kubelet and the others, helm the path of helm.
	binaries = "SKEP_E2E_BINARIES"
	helm     = "SKEP_E2E_HELM"
	// containerd names the folder of the containerd to run, with its shim.
	runtimeFolder = "SKEP_E2E_CONTAINERD"
)

// state is where everything of the node is. What a run that was killed left
// there, the next one takes away.
var state = filepath.Join(os.TempDir(), "skep-e2e")

// cgroup is the node's, below every hierarchy's root.
const cgroup = "skep-e2e"

func TestMain(m *testing.M) {
	switch os.Getenv(stage) {
	case stageFirst:
		os.Exit(first())
	case stageTest:
		os.Exit(m.Run())
	}
	if os.Getenv("SKEP_E2E") == "" {
		// The test says why it does not run.
		os.Exit(m.Run())
	}
	var code int
	err := mounted()
	if err == nil {
		code, err = around(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

// mounted runs this program again with the file systems that the machine has not mounted.
func mounted() error {
	if os.Getenv(stage) == stageMounted {
		return nil
	}
	runtime.LockOSThread()
	if err := errors.Join(leaks.MountMissing(), os.Setenv(stage, stageMounted)); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// needs are what the node takes from apt, by Debian's names of packages.
func needs() map[string]string {
	return map[string]string{
		"containerd": "/usr/bin/containerd", "runc": "/usr/sbin/runc", "containernetworking-plugins": "/usr/lib/cni/bridge",
		"nftables": "/usr/sbin/nft", "iproute2": "/usr/sbin/ip", "ca-certificates": authorities,
	}
}

// around does what is done outside of the namespaces.
func around(ctx context.Context) (int, error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("a node needs root")
	}
	var missing []string
	for name, proof := range needs() {
		if _, err := os.Stat(proof); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return 1, fmt.Errorf("this machine lacks %s", strings.Join(missing, ", "))
	}
	lock, err := os.OpenFile(state+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return 1, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return 1, err
	}
	if err := sweep(); err != nil {
		return 1, fmt.Errorf("clear what a former run left: %w", err)
	}
	if err := build(ctx); err != nil {
		return 1, err
	}
	code, err := inside()
	return code, errors.Join(err, sweep())
}

// build has everything built while there is a network to fetch modules from.
func build(ctx context.Context) error {
	if os.Getenv(binaries) == "" {
		dir, err := controlplane.Built(ctx)
		if err := errors.Join(err, os.Setenv(binaries, dir)); err != nil {
			return err
		}
	}
	if os.Getenv(runtimeFolder) == "" {
		dir, err := containerd.Folder()
		if err != nil {
			fmt.Fprintf(os.Stderr, "*** NO CONTAINERD 2, AND NO NRI: Debian's containerd runs instead. %v ***\n", err)
			dir = filepath.Dir(needs()["containerd"])
		}
		if err := os.Setenv(runtimeFolder, dir); err != nil {
			return err
		}
	}
	// containerd looks for its shim there.
	if err := os.Setenv("PATH", os.Getenv(runtimeFolder)+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	path, err := helmtest.Binary(ctx)
	if err != nil {
		return err
	}
	bin := filepath.Join(state, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	// Programs attach to functions of the worker's.
	for _, args := range [][]string{
		{"./cmd/skep"}, {"./release"}, {"./test/e2e/pause"}, {"./test/e2e/reader"}, {"-ldflags=-s=false", "./test/e2e/worker"},
		{"./examples/flow-agent/flow-reader"}, {"./examples/node-firewall/firewall-controller"}, {"./examples/xdp-counter/packet-exporter"},
	} {
		if err := command.Place(ctx, bin, args...); err != nil {
			return err
		}
	}
	// What make images links later is compiled by then.
	for _, name := range []string{"./cmd/skep-controller", "./cmd/skep-agent", "./cmd/skep-mounter"} {
		if _, err := command.Cached(ctx, name); err != nil {
			return err
		}
	}
	return os.Setenv(helm, path)
}

// inside runs the test in namespaces of its own.
func inside() (int, error) {
	// The first process is to end with the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := os.Setenv(stage, stageFirst); err != nil {
		return 1, err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	err := cmd.Run()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		return 1, nil
	}
	return 0, err
}

// first is what the first process of the namespaces does: it starts the test,
// and unloads whom nobody waits for, such as what containerd leaves.
func first() int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	err := os.Setenv(stage, stageTest)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	child, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		case pid == child.Pid && status.Exited():
			return status.ExitStatus()
		case pid == child.Pid:
			return 1
		}
	}
}

// hierarchies are the roots of the machine's cgroup hierarchies.
func hierarchies() ([]string, error) {
	body, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var roots []string
	for line := range strings.Lines(string(body)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[2], "cgroup") {
			roots = append(roots, fields[1])
		}
	}
	return roots, nil
}

// sweep takes away what a node leaves that does not go with its namespaces: its
// cgroups and its folder. Nothing lives in them any more.
func sweep() error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		if err := until(time.Minute, func() error { return removeCgroups(filepath.Join(root, cgroup)) }); err != nil {
			return err
		}
	}
	return os.RemoveAll(state)
}

// removeCgroups removes a cgroup with all below it. The kernel is busy with one
// for a moment after its last process ended.
func removeCgroups(root string) error {
	var found []string
	walk := func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			found = append(found, path)
		}
		return nil
	}
	if err := filepath.WalkDir(root, walk); err != nil {
		return err
	}
	for _, path := range slices.Backward(found) {
		if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove %s: %w", path, err)
		}
	}
	return nil
}

// until asks again and again, until there is no error or the time is over. Many a check is a command.
func until(patience time.Duration, check func() error) error {
	return untilEach(time.Second, patience, check)
}

// untilEach is until, with the longest pause between two checks.
func untilEach(longest, patience time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return await.Until(ctx, longest, check)
}
