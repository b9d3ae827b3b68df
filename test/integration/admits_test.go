package integration

import (
	"bytes"
	"fmt"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/admission"
	"github.com/skep-dev/skep/test/harness/deployment"
)

// admission is what a controller is told to serve its webhook, and where it does: see admits.
func (c *cluster) admission() (webhook string, change func(*controller.Options)) {
	c.t.Helper()
	webhook, err := deployment.Free(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	at := netip.MustParseAddrPort(webhook)
	return webhook, func(o *controller.Options) {
		// A busy machine is no reason to store what is to be denied.
		o.Admission = admission.Options{Host: at.Addr().String(), Port: int(at.Port()), Names: []string{at.Addr().String()}, Budget: 7 * time.Second}
	}
}

// admits has the API server ask the controller, by what the chart tells it, until
// the function that it returns is called. Others use the API server after it.
func (c *cluster) admits(webhook string) func() {
	c.t.Helper()
	chart := deployment.Chart{Namespace: "default"}
	mutates, err := c.plane.Mutates()
	if err != nil {
		c.t.Fatal(err)
	}
	if mutates {
		chart.Versions = deployment.Mutates()
	}
	var installed []client.Object
	for _, file := range []string{"requester.yaml", "webhook.yaml"} {
		objects, err := chart.Render(file)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, o := range objects {
			if o.GetKind() == "Service" {
				continue
			}
			deployment.Call(o, webhook)
			c.create(o)
			installed = append(installed, o)
		}
	}
	c.until("admission", func() error { return c.admitted(true) })
	return func() {
		for _, o := range installed {
			if err := c.Delete(c.t.Context(), o); err != nil {
				c.t.Error(err)
			}
		}
		c.until("no admission", func() error { return c.admitted(false) })
	}
}

// admitted tells by dry runs whether a signer without a key is rejected, and
// whether it is recorded who asks for an application.
func (c *cluster) admitted(want bool) error {
	keyless := c.Signer("tried")
	keyless.Spec.Key.PublicKey = "none"
	refused := c.Create(c.t.Context(), keyless, client.DryRunAll)
	app := fleet("127.0.0.1:1/none:v1")
	if err := c.Create(c.t.Context(), app, client.DryRunAll); err != nil {
		return err
	}
	requester := app.Annotations[v1alpha1.AnnotationRequester]
	if apierrors.IsForbidden(refused) != want || (requester != "") != want {
		return fmt.Errorf("it is to be %t: %w; requester %q", want, refused, requester)
	}
	return nil
}

// manifests are objects as YAML, as their authors write them.
func (c *cluster) manifests(objects ...client.Object) string {
	c.t.Helper()
	var docs [][]byte
	for _, o := range objects {
		gvk, err := c.GroupVersionKindFor(o)
		if err != nil {
			c.t.Fatal(err)
		}
		o.GetObjectKind().SetGroupVersionKind(gvk)
		body, err := yaml.Marshal(o)
		if err != nil {
			c.t.Fatal(err)
		}
		docs = append(docs, body)
	}
	return string(bytes.Join(docs, []byte("---\n")))
}
