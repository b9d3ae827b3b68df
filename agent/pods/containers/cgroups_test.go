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
	"github.com/skep-dev/skep/test/harness/await"
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
		"shell.scope": {LabelManager: "user_1.service", LabelManaged: "shell.scope"}, "init.scope": {LabelManager: "user_1.service", LabelManaged: "init.scope"},
		"plain": {LabelCgroup: "plain"}, "plain/below": {LabelCgroup: "below"},
	}
	got := snapshotOf(t, s, "six cgroups", func(s *Snapshot) error {
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
	for _, c := range got.containers {
		byName[c.Name] = c
	}
	one, php := byName["nginx.service"], byName["php.service"]
	if one.PID != nginx || php.PID != worker || one.CgroupPath != "system.slice/nginx.service" || one.Pod.Namespace != "" ||
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
	snapshotOf(t, s, "the second process", func(s *Snapshot) error {
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
	snapshotOf(t, s, "the end of the unit", func(s *Snapshot) error {
		if c, ok := s.Container(one.ID); ok {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	// A Snapshot has a change before somebody is woken for it.
	await.True(t, "somebody to be woken for the end of a unit", patience, func() bool { return wakes.Load() > n })
}

// TestAUnitIsOneOfTheNodesSystemd, and a cgroup of the same name that another one made is none.
func TestAUnitIsOneOfTheNodesSystemd(t *testing.T) {
	const manager = "user.slice/user-1000.slice/user@1000.service/"
	made := func(by, name string) map[string]string {
		return map[string]string{LabelManager: by, LabelManaged: name}
	}
	for cgroup, want := range map[string]map[string]string{
		"system.slice/nginx.service":                                {LabelUnit: "nginx.service", LabelSlice: "system.slice"},
		"system.slice/system-getty.slice/getty@tty1.service":        {LabelUnit: "getty_tty1.service", LabelSlice: "system-getty.slice"},
		"user.slice/user-1000.slice/session-1.scope":                {LabelUnit: "session-1.scope", LabelSlice: "user-1000.slice"},
		"kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope": {LabelUnit: "cri-containerd-1.scope", LabelSlice: "kubepods-pod1.slice"},
		"init.scope":                           {LabelUnit: "init.scope"},
		manager + "system.slice/nginx.service": made("user_1000.service", "nginx.service"),
		manager + "app.slice/nginx.service":    made("user_1000.service", "nginx.service"),
		manager + "nginx.service":              made("user_1000.service", "nginx.service"),
		manager + "app.slice/plain":            made("user_1000.service", "plain"),
		manager + "kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope": made("user_1000.service", "cri-containerd-1.scope"),
		"system.slice/docker-1.scope/system.slice/nginx.service":              made("docker-1.scope", "nginx.service"),
		"machine.slice/libpod-1.scope/container/system.slice/nginx.service":   nil,
		"docker/1/system.slice/nginx.service":                                 made("1", "nginx.service"),
		"kubepods/burstable/pod1/2/system.slice/nginx.service":                made("2", "nginx.service"),
		"alices.slice/system.slice/nginx.service":                             made("alices.slice", "nginx.service"),
		"alices.slice/alices-own.slice/nginx.service":                         {LabelUnit: "nginx.service", LabelSlice: "alices-own.slice"},
		"bobs.slice/nginx.service":                                            made("bobs.slice", "nginx.service"),
	} {
		t.Run(strings.ReplaceAll(cgroup, "/", "|"), func(t *testing.T) {
			spawn(t, cgroup)
			if strings.HasPrefix(cgroup, "bobs.slice") {
				if err := os.Chown(filepath.Join(need.Cgroup(t), "bobs.slice"), 1000, 1000); err != nil {
					t.Fatal(err)
				}
			}
			s, err := NewCgroups(Options{CgroupRoot: need.Cgroup(t), Interval: 10 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			snapshotOf(t, s, "the cgroups", func(s *Snapshot) error {
				var got []map[string]string
				for _, p := range s.Pods() {
					got = append(got, p.Labels)
				}
				if want == nil && len(got) <= 1 || len(got) == 1 && cmp.Equal(got[0], want) {
					return nil
				}
				return fmt.Errorf("pods: %v, want %v", got, want)
			})
		})
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
		if len(s.containers) != 1 {
			return fmt.Errorf("%d containers", len(s.containers))
		}
		return nil
	}
	id := snapshotOf(t, s, "the unit", one).containers[0].ID
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
	snapshotOf(t, s, "the unit again", one)
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
			if c.in.path != "kube/pod1/abc" || !c.IsRunning() {
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
	for _, c := range s.containers {
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
