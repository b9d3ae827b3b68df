package containers

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/pods/process"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestUnitsArePods(t *testing.T) {
	nginx := spawn(t, "system.slice/nginx.service")
	worker := spawn(t, "system.slice/php.service/worker")
	spawn(t, "user.slice/user-1.slice/user@1.service/app.slice/shell.scope")
	spawn(t, "user.slice/user-1.slice/user@1.service/init.scope")
	spawn(t, "plain")
	spawn(t, "plain/below")
	if err := os.MkdirAll(filepath.Join(need.Cgroup(t), "system.slice/stopped.service"), 0o755); err != nil {
		t.Fatal(err)
	}
	var wakes atomic.Int64
	s, err := NewCgroups(Options{CgroupRoot: need.Cgroup(t), Interval: 10 * time.Millisecond, Wake: func(...Pod) { wakes.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	unit := func(name, slice string) map[string]string {
		return map[string]string{LabelUnit: name, LabelSlice: slice}
	}
	want := map[string]map[string]string{
		"nginx.service": unit("nginx.service", "system.slice"), "php.service": unit("php.service", "system.slice"),
		"shell.scope": unit("shell.scope", "app.slice"), "init.scope": unit("init.scope", "user-1.slice"),
		"plain": {LabelCgroup: "plain"}, "plain/below": {LabelCgroup: "below"},
	}
	got := await(t, s, "six cgroups", func(s *Snapshot) error {
		labels := map[string]map[string]string{}
		for _, p := range s.Pods() {
			labels[p.Name] = p.Labels
		}
		if diff := cmp.Diff(want, labels); diff != "" {
			return fmt.Errorf("pods: %s", diff)
		}
		return nil
	})
	byName := map[string]Container{}
	for _, c := range got.Containers() {
		byName[c.Name] = c
	}
	one, php := byName["nginx.service"], byName["php.service"]
	if one.PID != nginx || php.PID != worker || one.CgroupPath != "system.slice/nginx.service" || one.Level != 2 || one.Pod.Namespace != "" ||
		one.Pod.NetnsID == 0 {
		t.Errorf("%+v, %+v", one, php)
	}
	if root, err := one.Root(); err != nil {
		t.Error(err)
	} else {
		_ = root.Close()
	}
	// A service is another one when it is started again, and another process is not.
	second := spawn(t, "system.slice/nginx.service")
	n := wakes.Load()
	if err := unix.Kill(nginx, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, s, "the second process", func(s *Snapshot) error {
		if c, _ := s.Container(one.ID); c.PID != second {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	if wakes.Load() != n {
		t.Error("another process of a unit woke somebody")
	}
	if err := unix.Kill(second, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, s, "the end of the unit", func(s *Snapshot) error {
		if c, ok := s.Container(one.ID); ok {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	if wakes.Load() == n {
		t.Error("the end of a unit woke nobody")
	}
}

// TestTooManyCgroupsAreAnError has a walk that is given up, and one after it that is not.
func TestTooManyCgroupsAreAnError(t *testing.T) {
	spawn(t, "many/unit.service")
	s, err := NewCgroups(Options{CgroupRoot: need.Cgroup(t), Interval: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	one := func(s *Snapshot) error {
		if len(s.Containers()) != 1 {
			return fmt.Errorf("%d containers", len(s.Containers()))
		}
		return nil
	}
	id := await(t, s, "the unit", one).Containers()[0].ID
	many := filepath.Join(need.Cgroup(t), "many")
	for i := range maxWalked {
		if err := os.Mkdir(filepath.Join(many, fmt.Sprint(i)), 0o755); err != nil {
			t.Skip("SKIPPED: so many cgroups cannot be made:", err)
		}
	}
	if gone := away(t, s, id); !strings.Contains(gone.Error(), "walk cgroups: there are more than 8192") {
		t.Errorf("Snapshot = %v", gone)
	}
	for i := range maxWalked {
		_ = unix.Rmdir(filepath.Join(many, fmt.Sprint(i)))
	}
	await(t, s, "the unit again", one)
}

func TestAHostWithoutCgroup2IsAnError(t *testing.T) {
	s, err := NewCgroups(Options{CgroupRoot: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if gone := away(t, s); !strings.Contains(gone.Error(), "no cgroup2 file system is mounted there") {
		t.Errorf("Snapshot = %v", gone)
	}
	if _, err := NewCgroups(Options{}); err == nil {
		t.Error("a source without a mount")
	}
}

// TestPathsOfAnotherCgroupNamespaceAreThoseOfTheMount looks from a cgroup namespace below the mount, as
// an agent in a container does.
func TestPathsOfAnotherCgroupNamespaceAreThoseOfTheMount(t *testing.T) {
	pid := spawn(t, "kube/pod1/abc")
	own := filepath.Join(need.Cgroup(t), "kube/agent")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	move := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(os.Getpid())), 0o600)
	}
	if err := move(own); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := move(need.Cgroup(t)); err != nil {
			t.Error(err)
		}
	}()
	// The thread ends with the goroutine, and its namespace with it.
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
				return err
			}
			n, err := openNode(need.Cgroup(t))
			if err != nil {
				return err
			}
			defer n.close()
			if n.origin != "/kube/agent" {
				return fmt.Errorf("the namespace begins at %s", n.origin)
			}
			c, err := n.confirm(pid, "abc", "")
			if err != nil {
				return err
			}
			_ = unix.Close(c.pidfd)
			if c.in.path != "kube/pod1/abc" || c.in.level != 3 || !c.IsRunning() {
				return fmt.Errorf("%+v", c)
			}
			root, err := c.Root()
			if err != nil {
				return err
			}
			return root.Close()
		}()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTheContainersOwnCgroup(t *testing.T) {
	for _, tc := range []struct{ in, id, record, want string }{
		{"/kubepods/besteffort/pod1/abc", "abc", "", "/kubepods/besteffort/pod1/abc"},
		{
			"/kubepods.slice/kubepods-pod1.slice/cri-containerd-abc.scope", "abc", "kubepods-pod1.slice:cri-containerd:abc",
			"/kubepods.slice/kubepods-pod1.slice/cri-containerd-abc.scope",
		},
		{"/kubepods.slice/kubepods-pod1.slice/crio-abc.scope/container", "abc", "", "/kubepods.slice/kubepods-pod1.slice/crio-abc.scope"},
		{"/pod1/evil/abc", "evil", "", "/pod1/evil"},
		{"/pod1/abc/init.scope", "abc", "", "/pod1/abc"},
		{"/machine/one/x", "abc", "/machine/one", "/machine/one"},
		{"/machine/one", "abc", "/machine/on", ""},
		{"/machine/one", "abc", "/", ""},
		{"/machine/one", "abc", "", ""},
		{"/pod1/abcd", "abc", "", ""},
		{"/pod1/xabc", "abc", "", ""},
		{"/pod1/abc.service", "abc", "", ""},
		{"/", "abc", "", ""},
		{"/pod1", "", "", ""},
	} {
		if got := ownCgroup(tc.in, tc.id, tc.record); got != tc.want {
			t.Errorf("ownCgroup(%q, %q, %q) = %q, want %q", tc.in, tc.id, tc.record, got, tc.want)
		}
	}
	for name, want := range map[string]bool{
		"podu-1": true, "kubepods-burstable-podu_1.slice": true, "podu_1.slice": true, "podu-1.slice": false, "u-1": false, "xpodu_1.slice": false, "kubepods": false,
	} {
		if isPodCgroup(name, "u-1") != want {
			t.Errorf("isPodCgroup(%q) = %v", name, !want)
		}
	}
}

func TestSnapshotsAreInOrder(t *testing.T) {
	pod := func(namespace, name, sandbox string) Pod {
		return Pod{Namespace: namespace, Name: name, SandboxID: sandbox}
	}
	s := NewSnapshot([]Container{
		{ID: "4", Name: "a", Pod: pod("b", "web", "s2")}, {ID: "3", Name: "b", Pod: pod("a", "web", "s1")}, {ID: "2", Name: "a", Pod: pod("a", "web", "s1")},
		{ID: "1", Name: "a", Pod: pod("a", "web", "s0"), Process: process.Process{PID: 1}},
	}, pod("a", "alone", "s3"))
	var ids, pods []string
	for _, c := range s.Containers() {
		ids = append(ids, c.ID)
	}
	for _, p := range s.Pods() {
		pods = append(pods, p.SandboxID)
	}
	if !slices.Equal(ids, []string{"1", "2", "3", "4"}) || !slices.Equal(pods, []string{"s3", "s0", "s1", "s2"}) {
		t.Errorf("containers %v, pods %v", ids, pods)
	}
	if of := s.Of(pod("a", "web", "s1")); len(of) != 2 || len(s.Of(pod("a", "web", "s9"))) != 0 {
		t.Errorf("of a pod: %v", of)
	}
	if _, ok := s.Container("9"); ok {
		t.Error("a container that is not there")
	}
}
