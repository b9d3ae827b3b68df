package chart

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestPeopleAskNodesWhereThatIsOn renders the chart with and without each API.
func TestPeopleAskNodesWhereThatIsOn(t *testing.T) {
	for sentence, c := range map[string]struct {
		values      []string
		view, reads bool
	}{
		"what runs is seen by default":      {nil, true, false},
		"maps are read where asked for":     {[]string{`mapReads.enabled=true`}, true, true},
		"maps alone":                        {[]string{`mapReads.enabled=true`, `view.enabled=false`}, false, true},
		"neither":                           {[]string{`view.enabled=false`}, false, false},
		"neither by values of an older one": {[]string{`mapReads=null`, `view=null`}, false, false},
	} {
		objects := setting{values: c.values}.objects(t)
		has := func(kind, name string) bool {
			return slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
		}
		for name, want := range map[string]bool{"v1alpha1.view.skep.dev": c.view, "v1alpha1.maps.skep.dev": c.reads} {
			if has("APIService", name) != want {
				t.Errorf("%s: APIService %s: %v", sentence, name, !want)
			}
		}
		if has("ClusterRole", "skep-aggregated") != (c.view || c.reads) || has("ClusterRole", "skep-map-reader") != c.reads {
			t.Errorf("%s: the roles are others", sentence)
		}
		agent := typed[appsv1.DaemonSet](t, objects, "DaemonSet", "skep-agent").Spec.Template.Spec.Containers[0]
		if slices.Contains(agent.Args, "--view") != c.view || slices.Contains(agent.Args, "--map-reads") != c.reads || len(agent.Ports) != 1 {
			t.Errorf("%s: the agent has %v, and the ports %v", sentence, agent.Args, agent.Ports)
		}
		controller := typed[appsv1.Deployment](t, objects, "Deployment", "skep-controller").Spec.Template.Spec.Containers[0]
		has9445 := slices.Contains(controller.Args, "--api-address=:9445")
		if has9445 != (c.view || c.reads) ||
			slices.Contains(controller.Args, "--view=true") != c.view || slices.Contains(controller.Args, "--map-reads=true") != c.reads {
			t.Errorf("%s: the controller has %v", sentence, controller.Args)
		}
	}
}

// TestAViewerOfANamespaceSeesItsAttachmentsAlone by the roles that the chart adds to Kubernetes' own, which never hold maps.
func TestAViewerOfANamespaceSeesItsAttachmentsAlone(t *testing.T) {
	objects := setting{values: []string{`mapReads.enabled=true`}}.objects(t)
	allowed := func(name string) (resources []string) {
		for _, rule := range typed[rbacv1.ClusterRole](t, objects, "ClusterRole", name).Rules {
			for _, group := range rule.APIGroups {
				if group != "skep.dev" && strings.HasSuffix(group, ".skep.dev") {
					resources = append(resources, rule.Resources...)
				}
			}
		}
		return resources
	}
	if got := allowed("skep-application-viewer"); !slices.Equal(got, []string{"bpfattachments", "bpfapplications", "bpfapplications/view"}) {
		t.Errorf("a viewer may see %v", got)
	}
	if got := allowed("skep-cluster-viewer"); len(got) != 7 || slices.ContainsFunc(got, func(r string) bool { return strings.HasSuffix(r, "/maps") }) {
		t.Errorf("a viewer of the cluster may see %v", got)
	}
	if labels := one(t, objects, "ClusterRole", "skep-map-reader").GetLabels(); len(labels) != 1 || labels["app.kubernetes.io/name"] != "skep" {
		t.Errorf("the right to maps is labelled %v: it must be aggregated to no other role", labels)
	}
}
