package admission

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/skep-dev/skep/test/harness/deployment"
)

var (
	// newest is a cluster with MutatingAdmissionPolicy, older one without.
	newest = deployment.Chart{Namespace: namespace, Versions: deployment.Mutates()}
	older  = deployment.Chart{Namespace: namespace}
)

// render is one of the chart's templates as objects that call the tests'
// replicas.
func render(file string, c deployment.Chart) []*unstructured.Unstructured {
	objects, err := c.Render(file)
	if err != nil {
		panic(err)
	}
	for _, o := range objects {
		deployment.Call(o, pair.service.Address())
	}
	return objects
}

// kinds counts the objects of each kind in a template.
func kinds(t *testing.T, file string, c deployment.Chart) map[string]int {
	t.Helper()
	objects, err := c.Render(file)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, o := range objects {
		counts[o.GetKind()]++
	}
	return counts
}

func TestTheChartRecordsTheRequesterOnEveryCluster(t *testing.T) {
	for name, c := range map[string]struct {
		chart           deployment.Chart
		policy, webhook int
	}{
		"by a policy where the cluster has them": {newest, 1, 0},
		"by a webhook where it has not":          {older, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			policies, webhooks := kinds(t, "requester.yaml", c.chart), kinds(t, "webhook.yaml", c.chart)
			if policies["MutatingAdmissionPolicy"] != c.policy || webhooks["MutatingWebhookConfiguration"] != c.webhook {
				t.Errorf("%v and %v", policies, webhooks)
			}
		})
	}
}

func TestCertManagerTakesTheCertificatesAndTheRightsToThem(t *testing.T) {
	managed := deployment.Chart{Namespace: namespace, CertManager: true}
	if got := kinds(t, "webhook.yaml", managed); got["Certificate"] != 2 || got["Issuer"] != 2 {
		t.Errorf("no certificate and no authority: %v", got)
	}
	mayWrite := func(c deployment.Chart) bool {
		objects, err := c.Render("rbac.yaml")
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
			return bytes.Contains([]byte(fmt.Sprint(o.Object["rules"])), []byte("skep-webhook"))
		})
	}
	if mayWrite(managed) || !mayWrite(newest) {
		t.Error("the right to the Secret does not follow who makes the certificate")
	}
}
