package hooks_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

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
	w := world.New(t)
	a, _ := w.Start()
	if err := w.Accept(a, world.Version(w, "1", v1alpha1.Attachment{Hook: "cgroup/bind4", Cgroup: "/skep-test-late"})); err == nil {
		t.Fatal("a cgroup that is not there is no error")
	}
	if _, l := world.One(t, a); l.State != agent.Failed || l.Target != "/skep-test-late" {
		t.Errorf("link = %+v", l)
	}
	remake()
	t.Cleanup(func() { _ = os.Remove(dir) })
	first := world.Attached(t, a)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the loss to be told", time.Minute, func() bool { return a.Status()[0].Error != "" })
	remake()
	if second := world.Attached(t, a); second == first {
		t.Error("the link on the new cgroup is the old one")
	}
	world.PinsAreTidy(w, map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
}

func TestABinaryThatIsReplacedIsProbedAnew(t *testing.T) {
	need.Kernel(t)
	path := filepath.Join(t.TempDir(), "shell")
	body, symbol, offset := world.Probed(t, false)
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
	w := world.New(t)
	a, _ := w.Start()
	if err := w.Accept(a,
		world.Version(w, "1", v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: path, Symbol: symbol, Offset: offset}})); err != nil {
		t.Fatal(err)
	}
	first := world.Attached(t, a)
	install()
	world.Until(t, "the new file to be probed", time.Minute, func() bool {
		_, l := world.One(t, a)
		return l.ID != first && l.State == agent.Attached && world.Runs(t, first) == 0
	})
	world.PinsAreTidy(w, map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
}

func TestANamedNetworkNamespaceIsAttachedTo(t *testing.T) {
	need.Kernel(t)
	path := world.Namespace(t)
	w := world.New(t)
	a, _ := w.Start()
	if err := w.Accept(a, world.Version(w, "1", v1alpha1.Attachment{Hook: "sk_lookup", NetworkNamespace: path})); err != nil {
		t.Fatal(err)
	}
	_, l := world.One(t, a)
	if l.Target != path {
		t.Errorf("link = %+v", l)
	}
	named, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	held, err := link.NewFromID(link.ID(world.Attached(t, a)))
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
