package admission

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// may asks the API server.
func may(t testing.TB, user, namespace, verb, group, resource, name string) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: group, Resource: resource, Name: name,
		}}}
	if err := admin.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

func TestRolesGrantWhatTheySayAndNoMore(t *testing.T) {
	w := newWorld(t)
	kinds := []string{"bpfapplications", "clusterbpfapplications", "bpfpolicies", "clusterbpfpolicies", "bpfsigners", "bpfimages", "bpfintents", "bpfnodes"}
	for role, c := range map[string]struct{ reads, writes []string }{
		"skep-application-editor": {kinds[:1], kinds[:1]},
		"skep-application-viewer": {[]string{"bpfapplications", "bpfpolicies"}, nil},
		"skep-policy-admin":       {kinds[2:5], kinds[2:5]},
		"skep-cluster-viewer":     {kinds, nil},
	} {
		t.Run(role, func(t *testing.T) {
			user := "user-of-" + role
			w.user(user, role)
			var reads, writes []string
			for _, kind := range kinds {
				if may(t, user, w.namespace, "list", v1alpha1.Group, kind, "") {
					reads = append(reads, kind)
				}
				if may(t, user, w.namespace, "update", v1alpha1.Group, kind, "") {
					writes = append(writes, kind)
				}
				if may(t, user, w.namespace, "update", v1alpha1.Group, kind+"/status", "") {
					t.Errorf("it may write the status of %s", kind)
				}
			}
			if diff := cmp.Diff([][]string{c.reads, c.writes}, [][]string{reads, writes}); diff != "" {
				t.Errorf("reads and writes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRolesBecomePartOfTheClustersOwn(t *testing.T) {
	want := map[string][]string{
		"skep-application-editor": {"admin", "edit"},
		"skep-application-viewer": {"admin", "edit", "view"},
		"skep-policy-admin":       nil,
		"skep-cluster-viewer":     nil,
	}
	got := map[string][]string{}
	for role := range want {
		var o rbacv1.ClusterRole
		if err := admin.Get(t.Context(), client.ObjectKey{Name: role}, &o); err != nil {
			t.Fatal(err)
		}
		got[role] = nil
		for _, to := range []string{"admin", "edit", "view"} {
			if o.Labels["rbac.authorization.k8s.io/aggregate-to-"+to] == "true" {
				got[role] = append(got[role], to)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("aggregated to (-want +got):\n%s", diff)
	}
}

func TestServiceAccountsHaveNoRightToSpare(t *testing.T) {
	const agent, controller = "system:serviceaccount:" + namespace + ":skep-agent", "system:serviceaccount:" + namespace + ":skep-controller"
	for _, c := range []struct {
		user, namespace, verb, group, resource, name string
		want                                         bool
	}{
		{agent, namespace, "get", "", "secrets", "skep-seal", false},
		{agent, "default", "list", "", "secrets", "", false},
		{agent, "", "update", v1alpha1.Group, "bpfintents", "", false},
		{agent, "", "patch", v1alpha1.Group, "bpfnodes", "", true},
		{agent, "", "delete", v1alpha1.Group, "bpfnodes", "", false},
		{agent, "", "patch", "", "nodes", "", false},
		{agent, "default", "list", "", "pods", "", false},
		{controller, "default", "get", "", "secrets", "", false},
		{controller, namespace, "get", "", "secrets", "skep-seal", true},
		{controller, namespace, "get", "", "secrets", "another", false},
		{controller, namespace, "list", "", "secrets", "", false},
		{controller, namespace, "list", "discovery.k8s.io", "endpointslices", "", true},
		{controller, "default", "list", "discovery.k8s.io", "endpointslices", "", false},
		{controller, namespace, "list", "", "pods", "", true},
		{controller, namespace, "delete", "", "pods", "", false},
		{controller, "default", "list", "", "pods", "", false},
		{controller, "", "update", v1alpha1.Group, "clusterbpfapplications", "", false},
		{controller, "", "update", v1alpha1.Group, "clusterbpfpolicies", "", false},
		{controller, "", "patch", v1alpha1.Group, "bpfnodes", "", false},
		{controller, "", "update", "admissionregistration.k8s.io", "validatingwebhookconfigurations", "skep", true},
		{controller, "", "update", "admissionregistration.k8s.io", "validatingwebhookconfigurations", "another", false},
		{controller, "", "update", "admissionregistration.k8s.io", "validatingadmissionpolicies", "skep-controller-writes", false},
		{controller, "", "list", "", "nodes", "", true},
		{controller, "", "patch", "", "nodes", "", false},
	} {
		if got := may(t, c.user, c.namespace, c.verb, c.group, c.resource, c.name); got != c.want {
			t.Errorf("%s may %s %s %s in %q: %v", c.user, c.verb, c.resource, c.name, c.namespace, got)
		}
	}
	// Whatever is bound to anything of Skep's is one of the two.
	var bindings rbacv1.ClusterRoleBindingList
	if err := admin.List(t.Context(), &bindings, client.MatchingLabels{"app.kubernetes.io/name": "skep"}); err != nil {
		t.Fatal(err)
	}
	for _, b := range bindings.Items {
		if len(b.Subjects) != 1 || !slices.Contains([]string{"skep-agent", "skep-controller"}, b.Subjects[0].Name) {
			t.Errorf("%s binds %v", b.Name, b.Subjects)
		}
	}
}
