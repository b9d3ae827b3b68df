package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/need"
)

// attached waits until the only link runs, and returns its id.
func attached(t *testing.T, a *agent.Agent) uint32 {
	t.Helper()
	var id uint32
	until(t, "the program to run", time.Minute, func() bool {
		s := a.Status()[0]
		if s.Error != "" || len(s.Programs) != 1 || len(s.Programs[0].Links) != 1 || s.Programs[0].Links[0].State != agent.Attached {
			return false
		}
		id = s.Programs[0].Links[0].ID
		return runs(t, id) != 0
	})
	return id
}

func TestACgroupThatComesLateOrAnewIsAttachedTo(t *testing.T) {
	need.Kernel(t)
	dir := filepath.Join(need.Cgroup(t), "skep-test-late")
	_ = os.Remove(dir)
	remake := func() {
		t.Helper()
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t)
	a, _ := w.start()
	if err := w.accept(a, w.version("1", v1alpha1.Attachment{Hook: "cgroup/bind4", Cgroup: "/skep-test-late"})); err == nil {
		t.Fatal("a cgroup that is not there is no error")
	}
	if _, l := one(t, a); l.State != agent.Failed || l.Target != "/skep-test-late" {
		t.Errorf("link = %+v", l)
	}
	remake()
	t.Cleanup(func() { _ = os.Remove(dir) })
	first := attached(t, a)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	until(t, "the loss to be told", time.Minute, func() bool { return a.Status()[0].Error != "" })
	remake()
	if second := attached(t, a); second == first {
		t.Error("the link on the new cgroup is the old one")
	}
	w.pinsAreTidy(map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
}

func TestABinaryThatIsReplacedIsProbedAnew(t *testing.T) {
	need.Kernel(t)
	path := filepath.Join(t.TempDir(), "shell")
	body, symbol, offset := probed(t, false)
	install := func() {
		t.Helper()
		if err := os.WriteFile(path+".new", body, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	install()
	w := newWorld(t)
	a, _ := w.start()
	if err := w.accept(a,
		w.version("1", v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: path, Symbol: symbol, Offset: offset}})); err != nil {
		t.Fatal(err)
	}
	first := attached(t, a)
	install()
	until(t, "the new file to be probed", time.Minute, func() bool {
		_, l := one(t, a)
		return l.ID != first && l.State == agent.Attached && runs(t, first) == 0
	})
	w.pinsAreTidy(map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
}

// namespace makes a network namespace and names it by a file, as ip netns does.
func namespace(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "blue")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return path
}

// onThread calls do, which may change the network namespace, on a thread that is brought
// back to its own: it may be the first one, whose namespace is that of /proc/self.
func onThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- err
			return
		}
		defer func() { _ = own.Close() }()
		err = do()
		back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, back)
	}()
	return <-done
}

func TestANamedNetworkNamespaceIsAttachedTo(t *testing.T) {
	need.Kernel(t)
	path := namespace(t)
	w := newWorld(t)
	a, _ := w.start()
	if err := w.accept(a, w.version("1", v1alpha1.Attachment{Hook: "sk_lookup", NetworkNamespace: path})); err != nil {
		t.Fatal(err)
	}
	_, l := one(t, a)
	if l.Target != path {
		t.Errorf("link = %+v", l)
	}
	named, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	held, err := link.NewFromID(link.ID(attached(t, a)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	info, err := held.Info()
	if err != nil {
		t.Fatal(err)
	}
	if st, ok := named.Sys().(*syscall.Stat_t); !ok || uint64(info.NetNs().NetnsInode) != st.Ino {
		t.Errorf("the link is on namespace %d, not on that of %s", info.NetNs().NetnsInode, path)
	}
}
