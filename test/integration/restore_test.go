package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// backup copies etcd's data, as it lies on disk after a power cut.
func (c *cluster) backup() (folder string) {
	c.t.Helper()
	folder = c.t.TempDir()
	again := c.crash("etcd")
	if err := os.CopyFS(folder, os.DirFS(c.plane.Env.ControlPlane.Etcd.DataDir)); err != nil {
		c.t.Fatal(err)
	}
	again()
	return folder
}

// restore puts a backup in the place of what is there.
func (c *cluster) restore(folder string) {
	c.t.Helper()
	again := c.crash("kube-apiserver", "etcd")
	data := c.plane.Env.ControlPlane.Etcd.DataDir
	if err := os.RemoveAll(data); err != nil {
		c.t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(folder)); err != nil {
		c.t.Fatal(err)
	}
	again()
}

func TestAnOldBackupUnloadsNothingAndIsConvergedTo(t *testing.T) {
	need.Kernel(t)
	c := ownCluster(t)
	machines, stop := c.begin(1)
	m := machines[0]
	first, digest := c.Push("count:v1", programs.Object("xdp_count"), "team-a")
	second, newer := c.Push("count:v2", programs.Object("xdp_count_v2"), "team-a")
	changed, removed, added := fleet(first), fleet(first), fleet(first)
	changed.Name, removed.Name, added.Name = "changed", "removed", "added"
	c.create(changed, removed)
	c.summary(changed, "1/1")
	c.summary(removed, "1/1")
	old := c.backup()

	c.change(changed, func() { changed.Spec.Bytecode.Image = second })
	m.runs(changed, newer)
	if err := c.Delete(t.Context(), removed); err != nil {
		t.Fatal(err)
	}
	c.create(added)
	m.runs(added, digest)
	c.until("it to be unloaded", func() error {
		if _, counters := m.counted(); counters != 2 {
			return fmt.Errorf("%d programs run", counters)
		}
		return nil
	})

	c.restore(old)
	m.counts()
	if _, counters := m.counted(); counters != 2 {
		t.Errorf("%d programs run", counters)
	}
	// What watches would else wait for what it has seen already: Kubernetes asks
	// to restart everything that does.
	stop()
	m.kill()
	m.start()
	c.control()
	m.runs(changed, digest)
	m.runs(removed, digest)
	t.Log("what the backup does not know runs on, until it is applied again")
	if got := m.revisions(added); len(got) != 1 {
		t.Errorf("%d revisions of what was added are pinned", len(got))
	}
	again := fleet(first)
	again.Name = "added"
	c.create(again)
	m.runs(again, digest)
	c.until("what it takes the place of to go", func() error {
		if got := m.revisions(added); len(got) > 0 {
			return fmt.Errorf("%v are pinned", got)
		}
		return nil
	})
	m.counts()
}

// TestANodesWordIsBelievedNoFurtherThanItHasTo has the agent of one node lie: it
// was taken over.
func TestANodesWordIsBelievedNoFurtherThanItHasTo(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.create(c.Signer("team-a"))
	app, victim := c.loads("app", "one"), c.loads("victim", "two")
	says := func(uid string, serial int64) v1alpha1.NodeApplication {
		return v1alpha1.NodeApplication{
			Kind: v1alpha1.KindClusterBpfApplication, Name: app.Name, UID: uid, Serial: serial, Revision: "r", State: v1alpha1.NodeLoaded,
		}
	}
	before := c.opened(app)
	lies := []v1alpha1.NodeApplication{
		says(string(victim.UID), 1), says(string(app.UID), time.Now().AddDate(10, 0, 0).UnixMilli()), says("Not A Name", 1),
	}
	const lost = 20
	for i := range lost {
		lies = append(lies, says(fmt.Sprintf("z-%02d", i), before.Serial+1000))
	}
	evil := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: "evil"}, Status: v1alpha1.BpfNodeStatus{Applications: lies}}
	c.create(evil)
	graves := func() (n int) {
		var all v1alpha1.BpfIntentList
		if err := c.List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		for _, o := range all.Items {
			if o.Spec.Tombstone && o.Spec.Serial > before.Serial+1000 {
				n++
			}
		}
		return n
	}
	c.until("what it says it runs without an intent to be unloaded", func() error {
		if graves() == 0 {
			return errors.New("nothing is")
		}
		return nil
	})
	// What comes after shows that all of it was looked at.
	c.change(app, func() { app.Spec.NodeSelector = nil })
	c.until("a change to be sealed", func() error {
		if c.opened(app).NodeSelector != nil {
			return errors.New("it is not")
		}
		return nil
	})
	if n := graves(); n >= lost/2 {
		t.Errorf("%d tombstones are made on one node's word", n)
	}
	c.runsStill(victim)
	if ahead := time.Until(time.UnixMilli(c.opened(app).Serial)); ahead > time.Minute {
		t.Errorf("the serial is %s ahead", ahead)
	}
}

// runs waits until a node holds the newest intent of an application and nothing
// else of its, that is of an image, and the node says so.
func (m *machine) runs(app *v1alpha1.ClusterBpfApplication, digest string) {
	m.c.t.Helper()
	m.c.until(m.name+" to run "+app.Name, func() error {
		open, err := m.c.tryOpen(app)
		if err != nil {
			return err
		}
		if got := open.Payload().ImageDigest; got != digest {
			return fmt.Errorf("sealed %s, want %s", got, digest)
		}
		if got := m.revisions(app); !slices.Equal(got, []string{open.Revision()}) {
			return fmt.Errorf("pinned %v, sealed %s", got, open.Revision())
		}
		var n v1alpha1.BpfNode
		if err := m.c.Get(m.c.t.Context(), client.ObjectKey{Name: m.name}, &n); err != nil {
			return err
		}
		p := open.Payload()
		for _, a := range n.Status.Applications {
			if a.UID == string(app.UID) && a.Serial == p.VersionSerial() && a.Revision == open.Revision() && a.State == v1alpha1.NodeLoaded {
				return nil
			}
		}
		return fmt.Errorf("sealed serial %d, revision %s; the node says %+v", open.Payload().Serial, open.Revision(), n.Status.Applications)
	})
}

// revisions are those of an application that are pinned on a machine.
func (m *machine) revisions(app client.Object) []string {
	m.c.t.Helper()
	folders, err := filepath.Glob(fmt.Sprintf("/proc/%d/root%s/skep/%s/[0-9a-f]*", m.sandbox.Process.Pid, bpffsOf, app.GetUID()))
	if err != nil {
		m.c.t.Fatal(err)
	}
	for i := range folders {
		folders[i] = filepath.Base(folders[i])
	}
	return folders
}
