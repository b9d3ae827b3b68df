package integration

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// stored is the BpfIntent of a name.
func (c *cluster) stored(name string) *v1alpha1.BpfIntent {
	c.t.Helper()
	o := &v1alpha1.BpfIntent{}
	if err := c.Get(c.t.Context(), client.ObjectKey{Name: name}, o); err != nil {
		c.t.Fatal(err)
	}
	return o
}

// says waits until the machine's agent has said something so often.
func (m *machine) says(what string, times int) {
	m.c.t.Helper()
	m.c.until(fmt.Sprintf("%s to say %q %d times", m.name, what, times), func() error {
		said, err := os.ReadFile(m.log.Name())
		if err != nil {
			return err
		}
		if n := bytes.Count(said, []byte(what)); n < times {
			return fmt.Errorf("it said so %d times", n)
		}
		return nil
	})
}

// TestReplayedIntentsMoveNothing has somebody who can write BpfIntents, past RBAC
// and the admission policy, show agents and controller what was sealed before.
func TestReplayedIntentsMoveNothing(t *testing.T) {
	need.Kernel(t)
	c := newCluster(t)
	machines, stop := c.begin(1)
	m := machines[0]
	first, digest := c.Push("count:v1", programs.Object("xdp_count"), "team-a")
	second, newer := c.Push("count:v2", programs.Object("xdp_count_v2"), "team-a")
	app, other := fleet(first), fleet(first)
	other.Name = "other"
	c.create(app, other)
	m.runs(app, digest)
	m.runs(other, digest)
	old := c.stored(string(app.UID))
	c.change(app, func() { app.Spec.Bytecode.Image = second })
	m.runs(app, newer)
	is := c.stored(string(app.UID))

	t.Log("an older one, and one under another's name, while no controller is there to notice")
	stop()
	replayed, misnamed := is.DeepCopy(), c.stored(string(other.UID))
	replayed.Spec, misnamed.Spec = old.Spec, is.Spec
	for _, o := range []client.Object{replayed, misnamed} {
		if err := c.Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	m.says("reason=older", 1)
	runs := func() {
		t.Helper()
		m.counts()
		if now, its := m.revisions(app), m.revisions(other); len(now) != 1 || len(its) != 1 || now[0] == its[0] {
			t.Errorf("%v and %v are pinned", now, its)
		}
	}
	runs()

	t.Log("a controller that comes back seals what is true")
	c.control()
	m.runs(app, newer)
	m.runs(other, digest)
	runs()

	t.Log("one of an application that was deleted, over its tombstone")
	is = c.stored(string(other.UID))
	if err := c.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	gone := func() {
		t.Helper()
		c.unloaded(other, "deleted")
		c.until("it to be unloaded", func() error {
			if got := m.revisions(other); len(got) > 0 {
				return fmt.Errorf("%v is pinned", got)
			}
			return nil
		})
	}
	gone()
	risen := c.stored(string(other.UID))
	risen.Spec = is.Spec
	if err := c.Update(t.Context(), risen); err != nil {
		t.Fatal(err)
	}
	m.says("reason=older", 2)
	gone()

	t.Log("and in the place of a tombstone that was taken away: what a node forgot is unloaded again")
	if err := c.Delete(t.Context(), c.stored(string(other.UID))); err != nil {
		t.Fatal(err)
	}
	risen = is.DeepCopy()
	risen.ResourceVersion, risen.UID = "", ""
	c.create(risen)
	gone()
	m.counts()
}
