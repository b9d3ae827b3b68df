package integration

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// vanish takes CRDs away, with all their objects.
func (c *cluster) vanish(resources ...string) {
	c.t.Helper()
	crds, err := apiextensions.NewForConfig(c.plane.Config)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, resource := range resources {
		name := resource + "." + v1alpha1.Group
		if err := crds.CustomResourceDefinitions().Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
			c.t.Fatal(err)
		}
		c.until("the CRD to go", func() error {
			if _, err := crds.CustomResourceDefinitions().Get(c.t.Context(), name, metav1.GetOptions{}); err == nil {
				return errors.New("it is still there")
			}
			return nil
		})
	}
}

func TestPoliciesAndSignersThatVanishWithTheirCRDsStayInForce(t *testing.T) {
	c := newCluster(t)
	t.Cleanup(func() {
		if err := c.Delete(context.WithoutCancel(t.Context()), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: policy.ConfigMapName},
		}); err != nil {
			t.Error(err)
		}
	})
	stop := c.control()
	signer := c.Signer("team-a")
	c.create(signer)
	runs := c.loads("runs", "one")
	strict := clusterPolicy("strict", `deny contains "no" if input.application.metadata.name != "runs"`, v1alpha1.RunningKeep)
	signed := clusterPolicy("signed", `deny contains "unsigned" if count(input.signatures) == 0`, v1alpha1.RunningUnload)
	c.create(strict, signed)
	c.condition(strict, v1alpha1.ConditionReady, metav1.ConditionTrue, policy.ReasonActive)
	c.condition(signed, v1alpha1.ConditionReady, metav1.ConditionTrue, policy.ReasonActive)
	ref, _ := c.Push("other:v1", programs.Object("tracepoint_count"), "team-a")
	denies := func(name string) *v1alpha1.ClusterBpfApplication {
		t.Helper()
		app := application(name, ref)
		c.create(app)
		denied := c.condition(app, v1alpha1.ConditionReady, metav1.ConditionFalse, "Denied")
		if !strings.Contains(denied.Message, "strict") || strings.Contains(denied.Message, "unsigned") || c.opened(app) != nil {
			t.Errorf("%s: %s; sealed %+v", name, denied.Message, c.opened(app))
		}
		c.runsStill(runs)
		return app
	}
	app := denies("before")

	c.vanish("clusterbpfpolicies", "bpfpolicies", "bpfsigners")
	denies("without-crds")
	c.install()
	denies("with-new-crds")
	stop()
	c.control()
	denies("after-a-restart")

	// What is created again and deleted then was deleted by somebody.
	again := clusterPolicy("strict", "", "")
	again.Spec = strict.Spec
	c.until("to apply again", func() error { return c.Create(t.Context(), again) })
	c.condition(again, v1alpha1.ConditionReady, metav1.ConditionTrue, policy.ReasonActive)
	if err := c.Delete(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	c.condition(app, v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed")
	c.runsStill(runs)
}
