package integration

import (
	"fmt"
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/keys"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/controlplane"
	"github.com/skep-dev/skep/test/programs"
)

// owned are the objects of Skep's namespace that a controller makes.
func (c *cluster) owned() []client.Object {
	return []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: keys.SecretName}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: keys.ConfigMapName}},
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
	if err := envtest.UninstallCRDs(c.plane.Config, controlplane.CRDInstall()); err != nil {
		c.t.Fatal(err)
	}
	crds, err := apiextensions.NewForConfig(c.plane.Config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.until("the CRDs to go", func() error {
		all, err := crds.CustomResourceDefinitions().List(c.t.Context(), metav1.ListOptions{})
		if err == nil && len(all.Items) > 0 {
			err = fmt.Errorf("%d are there", len(all.Items))
		}
		return err
	})
}

// keyed is control with the key in a Secret, which is the cluster's from then on.
func (c *cluster) keyed() (served served, stop func()) {
	c.t.Helper()
	served, stop = c.serve(c.t.TempDir(), func(o *controller.Options) { o.SealKey = nil })
	secret := c.owned()[0].(*corev1.Secret)
	if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		c.t.Fatal(err)
	}
	c.key = secret.Data["sealing.key"]
	return served, stop
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
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: making nodes and loading programs needs root")
	}
	c := newCluster(t)
	t.Cleanup(func() {
		for _, o := range c.owned() {
			_ = c.Delete(t.Context(), o)
		}
	})
	served, stop := c.keyed()
	c.create(c.Signer("team-a"))
	m := c.machines(buildAgent(t), served, 1)[0]
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
