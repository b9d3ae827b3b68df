package integration

import (
	"fmt"
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/need"
)

// owned are the objects of Skep's namespace that a controller makes.
func (c *cluster) owned() []client.Object {
	return []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: sealing.SecretName}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: sealing.ConfigMapName}},
	}
}

// forget deletes Skep's namespace, as far as it matters.
func (c *cluster) forget() {
	c.t.Helper()
	for _, o := range c.owned() {
		if err := client.IgnoreNotFound(c.Delete(c.t.Context(), o)); err != nil {
			c.t.Fatal(err)
		}
	}
}

// uninstall deletes Skep's CRDs, and waits until they are gone.
func (c *cluster) uninstall() {
	c.t.Helper()
	if err := c.plane.Uninstall(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// keyed is control with the key in a Secret, which is the cluster's from then on.
func (c *cluster) keyed() (served served, stop func()) {
	c.t.Helper()
	served, stop = c.serve(c.t.TempDir(), func(o *controller.Options) { o.SealKey = nil })
	c.takesKey()
	return served, stop
}

// takesKey takes the key in the Secret for the cluster's.
func (c *cluster) takesKey() {
	c.t.Helper()
	secret := c.owned()[0].(*corev1.Secret)
	if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		c.t.Fatal(err)
	}
	c.key = secret.Data["sealing.key"]
}

// trusts has the machine's agent trust the cluster's key, as the kubelet brings
// it.
func (m *machine) trusts() {
	m.c.t.Helper()
	sealer, err := intent.ParseKey(m.c.key)
	if err != nil {
		m.c.t.Fatal(err)
	}
	public, err := sealer.MarshalPublic()
	if err != nil {
		m.c.t.Fatal(err)
	}
	if err := os.WriteFile(m.flags[slices.Index(m.flags, "--trust")+1], public, 0o600); err != nil {
		m.c.t.Fatal(err)
	}
}

// TestSkepIsRemovedAndInstalledAgain deletes what an installation consists of.
// Programs stay, and what is applied afterwards takes their place.
func TestSkepIsRemovedAndInstalledAgain(t *testing.T) {
	need.Kernel(t)
	c := newCluster(t)
	t.Cleanup(func() {
		for _, o := range c.owned() {
			_ = c.Delete(t.Context(), o)
		}
	})
	served, stop := c.keyed()
	c.create(c.Signer("team-a"))
	m := c.machines(command.Build(t, "skep-agent"), served, 1)[0]
	ref, digest := c.Push("count:v1", programs.Object("xdp_count"), "team-a")
	app := fleet(ref)
	c.create(app)
	m.runs(app, digest)
	m.counts()
	for _, step := range []struct {
		name         string
		forget, CRDs bool
	}{
		{"its namespace, and so its key", true, false},
		{"its CRDs, and so all of its objects", false, true},
		{"all of it", true, true},
	} {
		t.Log(step.name)
		stop()
		m.kill()
		if step.forget {
			c.forget()
		}
		if step.CRDs {
			c.uninstall()
		}
		m.counts()
		c.install()
		before := m.pins()
		_, stop = c.keyed()
		m.trusts()
		m.start()
		m.counts()
		if now := m.pins(); now != before {
			t.Errorf("%d pins, were %d", now, before)
		}
		if step.CRDs {
			old := app
			app = fleet(ref)
			c.until("the kinds to be served", func() error { return c.Create(t.Context(), c.Signer("team-a")) })
			c.create(app)
			c.until("what it takes the place of to go", func() error {
				if got := m.revisions(old); len(got) > 0 {
					return fmt.Errorf("%v are pinned", got)
				}
				return nil
			})
		}
		m.runs(app, digest)
		m.counts()
	}
}
