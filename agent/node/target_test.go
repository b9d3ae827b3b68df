package node_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/node"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// attached waits until the only link runs, and returns its id.
func attached(t *testing.T, a *node.Agent) uint32 {
	t.Helper()
	var id uint32
	until(t, "the program to run", 5*time.Second, func() bool {
		s := a.Status()[0]
		if s.Error != "" || len(s.Programs) != 1 || len(s.Programs[0].Links) != 1 || s.Programs[0].Links[0].State != node.Attached {
			return false
		}
		id = s.Programs[0].Links[0].ID
		return runs(t, id) != 0
	})
	return id
}

func TestACgroupThatComesLateOrAnewIsAttachedTo(t *testing.T) {
	needKernel(t)
	dir := filepath.Join(cgroupRoot(t), "skep-test-late")
	_ = os.Remove(dir)
	make := func() {
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
	if _, l := one(t, a); l.State != node.Failed || l.Target != "/skep-test-late" {
		t.Errorf("link = %+v", l)
	}
	make()
	t.Cleanup(func() { _ = os.Remove(dir) })
	first := attached(t, a)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	until(t, "the loss to be told", 5*time.Second, func() bool { return a.Status()[0].Error != "" })
	make()
	if second := attached(t, a); second == first {
		t.Error("the link on the new cgroup is the old one")
	}
	w.pinsAreTidy(map[string]node.ApplicationStatus{"hooks": a.Status()[0]})
}

func TestABinaryThatIsReplacedIsProbedAnew(t *testing.T) {
	needKernel(t)
	path := filepath.Join(t.TempDir(), "shell")
	body, symbol, offset := probed(t)
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
	if err := w.accept(a, w.version("1", v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: path, Symbol: symbol, Offset: offset}})); err != nil {
		t.Fatal(err)
	}
	first := attached(t, a)
	install()
	until(t, "the new file to be probed", 5*time.Second, func() bool {
		_, l := one(t, a)
		return l.ID != first && l.State == node.Attached && runs(t, first) == 0
	})
	w.pinsAreTidy(map[string]node.ApplicationStatus{"hooks": a.Status()[0]})
}

func TestANamedNetworkNamespaceIsAttachedTo(t *testing.T) {
	needKernel(t)
	ip := func(do string) error {
		return exec.CommandContext(context.Background(), "ip", "netns", do, "skep-test-blue").Run()
	}
	if err := ip("add"); err != nil {
		t.Skip("SKIPPED: no network namespace can be named here: ", err)
	}
	t.Cleanup(func() { _ = ip("delete") })
	w := newWorld(t)
	a, _ := w.start()
	at := v1alpha1.Attachment{Hook: "sk_lookup", NetworkNamespace: "/run/netns/skep-test-blue"}
	if err := w.accept(a, w.version("1", at)); err != nil {
		t.Fatal(err)
	}
	if _, l := one(t, a); l.Target != "/run/netns/skep-test-blue" {
		t.Errorf("link = %+v", l)
	}
	attached(t, a)
}
