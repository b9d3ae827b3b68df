package attach_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

// inode is what a path leads to.
func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		t.Fatal(err)
	}
	return s.Ino
}

// hostFiles are the files of a node as a container has them.
func hostFiles(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for _, dir := range []string{"usr/bin", "run/netns"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"bin": "/usr/bin", "usr/bin/alias": "/usr/bin/app", "usr/bin/out": "../../../../../bin/sh"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	blue := filepath.Join(root, "run/netns/blue")
	if err := errors.Join(os.WriteFile(filepath.Join(root, "usr/bin/app"), []byte("x"), 0o755), os.WriteFile(blue, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if leaks.Isolated() {
		if err := unix.Mount("/proc/self/ns/net", blue, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(blue, unix.MNT_DETACH) })
	}
	return root
}

func TestFilesOfTheNodeAreFoundBelowItsRootAndNowhereElse(t *testing.T) {
	root := hostFiles(t)
	host := attach.Host{Root: root}
	for sentence, path := range map[string]string{
		"a file": "/usr/bin/app", "by a link that is absolute": "/bin/app", "by a link to the file": "/usr/bin/alias",
		"by dots": "/../../usr/bin/app",
	} {
		got, err := resolve(plan.Attachment{Hook: "uprobe", Target: plan.Target{Binary: path}}, host)
		_, id, _ := strings.Cut(got.BinaryID, ":")
		if want := inode(t, filepath.Join(root, "usr/bin/app")); err != nil || id != strconv.FormatUint(want, 10) {
			t.Errorf("%s: %s is %q, %v; want inode %d", sentence, path, got.BinaryID, err, want)
		}
	}
	// The container's own files are there, and are not meant.
	for sentence, at := range map[string]plan.Attachment{
		"the container's own file":     {Hook: "uprobe", Target: plan.Target{Binary: "/proc/self/exe"}},
		"a link that leads out":        {Hook: "uprobe", Target: plan.Target{Binary: "/usr/bin/out"}},
		"a namespace of the container": {Hook: "sk_lookup", Target: plan.Target{NetworkNamespace: "/proc/self/ns/net"}},
	} {
		if got, err := resolve(at, host); !errors.Is(err, attach.ErrTarget) {
			t.Errorf("%s: %+v, %v", sentence, got, err)
		}
	}
	own, err := resolve(plan.Attachment{Hook: "sk_lookup"}, host)
	if err != nil || own.NetnsID != inode(t, "/proc/self/ns/net") {
		t.Errorf("the own network namespace is %d, %v", own.NetnsID, err)
	}
	need.Kernel(t)
	blue, err := resolve(plan.Attachment{Hook: "sk_lookup", Target: plan.Target{NetworkNamespace: "/run/netns/blue"}}, host)
	if err != nil || blue.NetnsID != own.NetnsID {
		t.Errorf("the named network namespace is %d, %v", blue.NetnsID, err)
	}
}

// inPIDNamespace marks the child that has a PID namespace of its own.
const inPIDNamespace = "SKEP_TEST_PIDNS"

// TestAPidIsTheNodesOrRefused probes process 1, which in another PID namespace is
// another process.
func TestAPidIsTheNodesOrRefused(t *testing.T) {
	need.Kernel(t)
	err := probeProcess(t, 1)
	if os.Getenv(inPIDNamespace) != "" {
		if err == nil || !strings.Contains(err.Error(), "hostPID") {
			t.Errorf("in a PID namespace of its own: %v", err)
		}
		return
	}
	if name, _ := os.Readlink("/proc/self/ns/pid"); name != "pid:[4026531836]" {
		t.Logf("these tests run in %s themselves", name)
	} else if err != nil {
		t.Errorf("in the node's PID namespace: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestAPidIsTheNodesOrRefused$")
	cmd.Env = append(os.Environ(), inPIDNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := child.Run(cmd); err != nil {
		t.Errorf("%v\n%s", err, said.String())
	}
}

// probeProcess puts a probe into this binary for one process, and takes it away.
func probeProcess(t *testing.T, pid int32) error {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programs.Object("uprobe_count")))
	if err != nil {
		t.Fatal(err)
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(coll.Close)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l, err := attach.To(attach.Request{Program: coll.Programs["uprobe_count"],
		Attachment: plan.Attachment{Hook: "uprobe", Target: plan.Target{Binary: self, Offset: 0x1000, PID: pid}}})
	if err != nil {
		return err
	}
	return l.Close()
}
