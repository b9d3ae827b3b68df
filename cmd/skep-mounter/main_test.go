package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func TestTheMounterTellsItsVersion(t *testing.T) {
	out := &strings.Builder{}
	cmd := newRoot(out, out)
	cmd.SetArgs([]string{"--version"})
	if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.HasPrefix(out.String(), "skep-mounter version ") {
		t.Errorf("%v, %q", err, out)
	}
}

// container is a mounter in a mount namespace of its own, which has a node's folder of pods with bidirectional propagation.
type container struct {
	testing.TB
	binary, pods string
	mounter.Client
	cmd *exec.Cmd
	// without is set where volumes have no pins.
	without bool
}

func newContainer(t testing.TB) *container {
	t.Helper()
	need.Kernel(t)
	c := &container{TB: t, binary: command.Build(t, "skep-mounter"), pods: t.TempDir()}
	c.Socket = filepath.Join(t.TempDir(), "mounter", "socket")
	if err := errors.Join(unix.Mount(c.pods, c.pods, "", unix.MS_BIND, ""), unix.Mount("", c.pods, "", unix.MS_SHARED, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(c.pods, unix.MNT_DETACH) })
	return c
}

// starts starts the mounter, and waits until it answers.
func (c *container) starts() {
	c.Helper()
	c.cmd = exec.CommandContext(context.Background(), c.binary, "--pods="+c.pods, "--socket="+c.Socket, fmt.Sprint("--pins=", !c.without))
	c.cmd.Stderr = c.Output()
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if err := child.Start(c.cmd); err != nil {
		c.Fatal(err)
	}
	cmd := c.cmd
	c.Cleanup(func() { _ = cmd.Process.Kill() })
	await.True(c, "the mounter", 20*time.Second, func() bool {
		_, err := c.List(c.Context())
		return err == nil
	})
}

// dies ends the mounter at once.
func (c *container) dies() {
	c.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		c.Fatal(err)
	}
	_ = c.cmd.Wait()
}

// mountpoints are the mounts below the folder of pods.
func (c *container) mountpoints() (found []string) {
	c.Helper()
	all, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		c.Fatal(err)
	}
	for line := range strings.Lines(string(all)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, c.pods+"/") {
			found = append(found, at)
		}
	}
	return found
}

// volume is the volume with a number, whose folder is made as the kubelet makes it.
func (c *container) volume(i int) mounter.Volume {
	c.Helper()
	v := mounter.Volume{Pod: fmt.Sprintf("%08x-1f0e-4f5c-9d2e-0a1b2c3d4e5f", i), Name: "maps"}
	if err := os.MkdirAll(filepath.Join(c.pods, v.Pod, "volumes", "kubernetes.io~csi", v.Name), 0o755); err != nil {
		c.Fatal(err)
	}
	return v
}

func TestAMounterKeepsTheRightToMountAndNoNetwork(t *testing.T) {
	c := newContainer(t)
	const mount, mountAndChown = "0000000000200000", "0000000000200001" // CAP_SYS_ADMIN; and CAP_CHOWN
	c.hasRights(mountAndChown)
	c.without = true
	c.hasRights(mount)
}

// hasRights starts a mounter, and holds that it has these capabilities and no network.
func (c *container) hasRights(want string) {
	t := c.TB
	t.Helper()
	c.starts()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"CapInh": "0000000000000000", "CapPrm": want, "CapEff": want, "CapBnd": want, "CapAmb": "0000000000000000", "NoNewPrivs": "1",
	} {
		if !strings.Contains(string(status), name+":\t"+want+"\n") {
			t.Errorf("%s is not %s:\n%s", name, want, status)
		}
	}
	devices, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", c.cmd.Process.Pid))
	if err != nil || strings.Count(string(devices), ":") != 1 || !strings.Contains(string(devices), "lo:") {
		t.Errorf("it has devices: %v\n%s", err, devices)
	}
	c.dies()
}

// TestNoMountLeaksOrVanishesWithAMounter kills it fifty times, anywhere within mounts.
func TestNoMountLeaksOrVanishesWithAMounter(t *testing.T) {
	c := newContainer(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	pins := []mounter.Pin{{Name: "read", Map: m.FD()}, {Name: "write", Write: true, Map: m.FD()}}
	c.starts()
	kept := c.volume(0)
	mounts(t, c.Client, kept, pins)
	before := c.mountpoints()
	for i := range 50 {
		v := c.volume(1 + i%4)
		var asked sync.WaitGroup
		asked.Go(func() {
			for t.Context().Err() == nil {
				if dir, err := c.Mount(t.Context(), v, 1, nil, pins); err != nil {
					return
				} else if dir.Close() != nil || c.Unmount(t.Context(), v) != nil {
					return
				}
			}
		})
		// Somewhere within what a mount takes, about a millisecond.
		<-time.After(time.Duration(i*i) * time.Microsecond)
		c.dies()
		asked.Wait()
		c.starts()
		mounts(t, c.Client, v, pins)
		for _, pin := range []string{"maps/read", "maps@write/write"} {
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(c.pods, v.Pod, "volumes/kubernetes.io~csi/maps/mount", pin), &st); err != nil || st.Gid != 1 {
				t.Fatalf("after %d kills a volume is not whole: %s is of group %d, %v", i+1, pin, st.Gid, err)
			}
		}
		if err := c.Unmount(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		if now := c.mountpoints(); strings.Join(now, " ") != strings.Join(before, " ") {
			t.Fatalf("after %d kills, mounts are %v, and were %v", i+1, now, before)
		}
	}
	if all, err := c.List(t.Context()); err != nil || len(all) != 1 || all[0].Volume != kept {
		t.Errorf("volumes are %v, %v", all, err)
	}
	if err := c.Unmount(t.Context(), kept); err != nil {
		t.Error(err)
	}
	c.dies()
}

// mounts mounts a volume.
func mounts(t *testing.T, c mounter.Client, v mounter.Volume, pins []mounter.Pin) {
	t.Helper()
	dir, err := c.Mount(t.Context(), v, 1, nil, pins)
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAThousandMountsLeaveTheMountTable as it was.
func TestAThousandMountsLeaveTheMountTable(t *testing.T) {
	c := newContainer(t)
	c.starts()
	began := time.Now()
	for i := range 1000 {
		v := c.volume(i % 10)
		mounts(t, c.Client, v, nil)
		if err := c.Unmount(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("1,000 mounts and unmounts took %v", time.Since(began).Round(time.Millisecond))
	if left := c.mountpoints(); len(left) > 0 {
		t.Errorf("these are left: %v", left)
	}
	c.dies()
}
