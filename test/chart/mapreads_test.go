package chart

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// TestPeopleReadMapsWhereThatIsAskedFor renders the chart with and without the API, which no other role includes.
func TestPeopleReadMapsWhereThatIsAskedFor(t *testing.T) {
	for sentence, values := range map[string][]string{"not by default": nil, "nor by values of an older one": {`mapReads=null`}} {
		for _, document := range (setting{values: values}).template(t) {
			o := decoded(t, document)
			for _, trace := range []string{"maps.skep.dev", "map-read", "9445"} {
				if o.GetKind() != "CustomResourceDefinition" && strings.Contains(string(document), trace) {
					t.Errorf("%s: %s %s has %q in it", sentence, o.GetKind(), o.GetName(), trace)
				}
			}
		}
	}
	objects := setting{values: []string{`mapReads.enabled=true`}}.objects(t)
	one(t, objects, "APIService", "v1alpha1.maps.skep.dev")
	if labels := one(t, objects, "ClusterRole", "skep-map-reader").GetLabels(); len(labels) != 1 || labels["app.kubernetes.io/name"] != "skep" {
		t.Errorf("the right is labelled %v: it must be aggregated to no other role", labels)
	}
	agent := typed[appsv1.DaemonSet](t, objects, "DaemonSet", "skep-agent").Spec.Template.Spec.Containers[0]
	if !slices.Contains(agent.Args, "--map-reads") || len(agent.Ports) != 1 {
		t.Errorf("the agent has %v, and the ports %v", agent.Args, agent.Ports)
	}
	controller := typed[appsv1.Deployment](t, objects, "Deployment", "skep-controller").Spec.Template.Spec.Containers[0]
	if !slices.Contains(controller.Args, "--map-reads-address=:9445") {
		t.Errorf("the controller has %v", controller.Args)
	}
}
