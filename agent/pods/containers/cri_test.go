package containers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skep-dev/skep/agent/pods/process"
	"github.com/skep-dev/skep/test/harness/need"
)

const goarch = runtime.GOARCH

// snapshotOf waits for a Snapshot without an error, as the check wants it.
func snapshotOf(t testing.TB, s Source, what string, check func(*Snapshot) error) *Snapshot {
	t.Helper()
	var got *Snapshot
	until(t, what, func() error {
		now, err := s.Snapshot()
		if err == nil {
			err = check(now)
		}
		got = now
		if err != nil {
			return fmt.Errorf("%w; skipped: %v", err, now.Skipped())
		}
		return nil
	})
	return got
}

// has checks that these containers run, and no others.
func has(ids ...string) func(*Snapshot) error {
	return func(s *Snapshot) error {
		if len(s.containers) != len(ids) {
			return fmt.Errorf("%d containers, want %d", len(s.containers), len(ids))
		}
		for _, id := range ids {
			if _, ok := s.Container(id); !ok {
				return fmt.Errorf("no container %s", id)
			}
		}
		return nil
	}
}

func TestContainersAreThoseThatRun(t *testing.T) {
	daemons(t, func(t *testing.T, d *daemon) {
		// The runtime's details of its container have more bytes than an answer of containerd may.
		one := d.run(&pod{namespace: "blue", name: "web", uid: "11111111-1111-1111-1111-111111111111", hostNetwork: true, environment: large(12),
			labels: map[string]string{"app": "web", "io.kubernetes.pod.namespace": "claimed"}})
		two := d.run(&pod{namespace: "green", name: "web", uid: "22222222-2222-2222-2222-222222222222", labels: map[string]string{"app": "web"}})
		alone := d.run(&pod{namespace: "green", name: "alone", uid: "33333333-3333-3333-3333-333333333333", hostNetwork: true})
		first, second, created := d.start(one, "main"), d.start(two, "main"), d.create(two, "later", 0)
		s := d.source(nil)
		if got, err := s.Snapshot(); !errors.Is(err, ErrNotRead) || len(got.containers) != 0 {
			t.Errorf("the first Snapshot has %v, %v", got, err)
		}
		got := snapshotOf(t, s, "two containers", has(first, second))
		if len(got.Pods()) != 3 || got.Pods()[1].Name != "alone" || len(got.Of(got.Pods()[1])) != 0 || got.Pods()[1].SandboxID != alone.sandbox {
			t.Errorf("pods: %+v", got.Pods())
		}
		a, _ := got.Container(first)
		b, _ := got.Container(second)
		for _, tc := range []struct {
			c Container
			p *pod
		}{{a, one}, {b, two}} {
			d.compare(tc.c, tc.p)
			if of := got.Of(tc.c.Pod); len(of) != 1 || of[0].ID != tc.c.ID {
				t.Errorf("containers of %s: %v", tc.c.Pod.Namespace, of)
			}
		}
		if a.Pod.NetnsID == b.Pod.NetnsID || a.CgroupID == b.CgroupID {
			t.Errorf("two pods in one place: %+v, %+v", a, b)
		}
		// What is made later, restarted, and ended.
		d.begin(created)
		snapshotOf(t, s, "the third", has(first, second, created))
		d.stop(second)
		again := d.create(two, "main", 1)
		d.begin(again)
		snapshotOf(t, s, "the restarted one", has(first, again, created))
		d.end(two.sandbox)
		last := snapshotOf(t, s, "the end of a pod", has(first))
		if len(last.Pods()) != 2 {
			t.Errorf("pods: %+v", last.Pods())
		}
	})
}

// large are so many variables, each as long as the kernel takes, whose bytes JSON has six characters for.
func large(n int) (all []*cri.KeyValue) {
	for i := range n {
		all = append(all, &cri.KeyValue{Key: fmt.Sprint("X", i), Value: bytes.Repeat([]byte{'<'}, 127<<10)})
	}
	return all
}

// compare compares a container with what the pod was made of, and with what the kernel says.
func (d *daemon) compare(c Container, p *pod) {
	d.t.Helper()
	if c.Pod.Namespace != p.namespace || c.Pod.Name != p.name || c.Pod.UID != p.uid || c.Pod.HostNetwork != p.hostNetwork || c.Name != "main" ||
		c.Image != "test.local/work:1" || len(c.Pod.Labels) != 1 || c.Pod.Labels["app"] != "web" {
		d.t.Errorf("%+v is not %+v", c, p)
	}
	if c.CgroupPath != parent[1:]+"/pod"+p.uid+"/"+c.ID || c.Pod.CgroupPath != parent[1:]+"/pod"+p.uid {
		d.t.Errorf("cgroups: %+v", c)
	}
	for path, id := range map[string]uint64{c.CgroupPath: c.CgroupID, c.Pod.CgroupPath: c.Pod.CgroupID} {
		var stat unix.Stat_t
		if err := unix.Stat(filepath.Join(need.Cgroup(d.t), path), &stat); err != nil || stat.Ino != id {
			d.t.Errorf("cgroup %s: %d and %d, %v", path, stat.Ino, id, err)
		}
	}
	root, err := c.Root()
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	f, err := process.OpenIn(root, "tool")
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	body, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if want, _ := program(); err != nil || len(body) != len(want) {
		d.t.Errorf("the container's program has %d bytes, %v", len(body), err)
	}
	if _, err := process.OpenIn(root, "/no/such"); !errors.Is(err, fs.ErrNotExist) {
		d.t.Errorf("OpenIn = %v", err)
	}
	for _, one := range []process.Process{c.Process, c.Pod.Sandbox} {
		ns, id, err := one.NetworkNamespace()
		if err != nil {
			d.t.Fatal(err)
		}
		own, _ := os.Readlink("/proc/self/ns/net")
		if isOwn := strings.Contains(own, fmt.Sprintf("[%d]", id)); id != c.Pod.NetnsID || isOwn != p.hostNetwork {
			d.t.Errorf("network namespace %d of %+v, own %s", id, c.Pod, own)
		}
		_ = ns.Close()
	}
}
