package cluster

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestATenantSeesTheFleetOfItsNamespace and each right that is missing, once.
func TestATenantSeesTheFleetOfItsNamespace(t *testing.T) {
	f := installed(t)
	for _, resource := range []string{"bpfnodes", "bpfsigners", "clusterbpfpolicies", "clusterbpfapplications", "bpfapplications", "bpfpolicies"} {
		f.forbidden[of(resource)] = true
	}
	f.objects[of("namespaces", "team-a", "bpfapplications")] = []any{ready("team-a", "mine")}
	f.objects[of("namespaces", "team-a", "bpfpolicies")] = []any{v1alpha1.BpfPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "own"}}}
	fleet, err := f.client(t, false).Fleet(t.Context())
	if err != nil || len(fleet.Applications) != 1 || len(fleet.Policies) != 1 {
		t.Fatalf("%v, %+v", err, fleet)
	}
	if diff := cmp.Diff([]string{"list clusterbpfapplications.skep.dev", "list bpfapplications.skep.dev in every namespace", "list bpfnodes.skep.dev",
		"list bpfpolicies.skep.dev in every namespace", "list bpfsigners.skep.dev", "list clusterbpfpolicies.skep.dev"}, fleet.Needs); diff != "" {
		t.Error(diff)
	}
}

// TestACallerWhoIsNotKnownLacksNoRight but credentials.
func TestACallerWhoIsNotKnownLacksNoRight(t *testing.T) {
	f := installed(t)
	f.unknown = true
	c := f.client(t, false)
	_, err := c.Fleet(t.Context())
	_, nodeErr := c.Node(t.Context(), "a")
	_, statusErr := c.Status(t.Context(), nil)
	for what, err := range map[string]error{"the fleet": err, "a node": nodeErr, "the status": statusErr} {
		if err == nil || !strings.Contains(err.Error(), "does not accept your credentials") || strings.Contains(err.Error(), "needs the right") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
