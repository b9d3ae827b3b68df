package integration

import (
	"errors"
	"path/filepath"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/deployment"
)

// deploys runs two controllers, each a process of its own with these flags too, and returns their
// mirror as agents see it.
func (c *cluster) deploys(flags ...string) ([]*deployment.Replica, served) {
	c.t.Helper()
	o := deployment.Options{
		Binary: command.Build(c.t, "skep-controller"), Kubeconfig: filepath.Join(c.t.TempDir(), "kubeconfig"), Namespace: "default",
		Flags: append([]string{"--certificate-name=example.com"}, flags...), Restart: true,
	}
	if err := writeKubeconfig(c.plane.Config, o.Kubeconfig); err != nil {
		c.t.Fatal(err)
	}
	mirrors, err := deployment.Listen(c.t.Context(), "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = mirrors.Close() })
	var pair []*deployment.Replica
	for range 2 {
		one := deployment.Start(c.t, o)
		c.until("a controller to be ready", one.Ready)
		mirrors.Join(one.Mirror)
		pair = append(pair, one)
	}
	c.takesKey()
	authority, err := sealing.Published(c.t.Context(), c.Client, "default", sealing.MirrorCA)
	if err != nil || len(authority) == 0 {
		c.t.Fatalf("agents are told to trust %q: %v", authority, err)
	}
	return pair, served{url: "https://" + mirrors.Address(), authority: authority}
}

// leader waits until one of the controllers leads, and returns it and who else
// there is.
func (c *cluster) leader(pair []*deployment.Replica) (leads, other *deployment.Replica) {
	c.t.Helper()
	c.until("a controller to lead", func() error {
		for i, one := range pair {
			if one.Leads() {
				leads, other = one, pair[1-i]
				return nil
			}
		}
		return errors.New("nobody does")
	})
	return leads, other
}

// holder is who the lease says leads.
func (c *cluster) holder() string {
	c.t.Helper()
	var lease coordinationv1.Lease
	if err := c.Get(c.t.Context(), client.ObjectKey{Namespace: "default", Name: "skep-controller"}, &lease); err != nil {
		c.t.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}
