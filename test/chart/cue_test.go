package chart

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestNothingOfCUEIsThereWhereItIsOff(t *testing.T) {
	off := setting{values: []string{`cue={"concurrent":9,"tagNamespaces":["*"],"noCrossNamespaceRefs":true}`}}
	for _, document := range off.template(t) {
		o := decoded(t, document)
		if o.GetKind() == "CustomResourceDefinition" {
			continue
		}
		for _, trace := range []string{"cueartifact", "source.toolkit.fluxcd.io", "artifacts", "--cue-", "9790", "cross-namespace"} {
			if strings.Contains(string(document), trace) {
				t.Errorf("%s %s has %q in it", o.GetKind(), o.GetName(), trace)
			}
		}
	}
}

func TestCUEReadsSourcesAndWritesArtifactsAlone(t *testing.T) {
	objects := setting{values: []string{`cue.enabled=true`}}.objects(t)
	var got []string
	for _, r := range typed[rbacv1.ClusterRole](t, objects, "ClusterRole", "skep-cue").Rules {
		got = append(got, fmt.Sprint(r.APIGroups, r.Resources, r.Verbs))
	}
	want := []string{
		"[skep.dev] [cueartifacts] [get list watch]",
		"[skep.dev] [cueartifacts/status] [patch]",
		"[source.toolkit.fluxcd.io] [gitrepositories ocirepositories buckets] [get list watch]",
		"[source.toolkit.fluxcd.io] [externalartifacts] [get list watch create patch]",
		"[source.toolkit.fluxcd.io] [externalartifacts/status] [patch]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("rights are\n%s", strings.Join(got, "\n"))
	}
	if slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetName() == "skep-cue-tags" }) {
		t.Error("it may get Secrets that nobody said it may")
	}
}

func TestTagsAreGotWhereTheyMayBe(t *testing.T) {
	for value, want := range map[string][]string{
		`["team-a","team-b"]`: {"Role team-a", "Role team-b", "RoleBinding team-a", "RoleBinding team-b"},
		`["team-a","*"]`:      {"ClusterRole ", "ClusterRoleBinding "},
	} {
		var got []string
		for _, o := range (setting{values: []string{`cue.enabled=true`, `cue.tagNamespaces=` + value}}).objects(t) {
			if o.GetName() != "skep-cue-tags" {
				continue
			}
			got = append(got, o.GetKind()+" "+o.GetNamespace())
			if rules, ok, _ := unstructured.NestedSlice(o.Object, "rules"); ok && fmt.Sprint(rules) != "[map[apiGroups:[] resources:[configmaps secrets] verbs:[get]]]" {
				t.Errorf("%s: %v", value, rules)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %q", value, got)
		}
	}
}

// TestArtifactsAreServedWhereTheyAreAdvertised follows the address that Flux is told to the container's port.
func TestArtifactsAreServedWhereTheyAreAdvertised(t *testing.T) {
	objects := setting{values: []string{`cue.enabled=true`, `controller.replicas=1`}}.objects(t)
	pod := typed[appsv1.Deployment](t, objects, "Deployment", "skep-controller").Spec.Template
	container := pod.Spec.Containers[0]
	service := typed[corev1.Service](t, objects, "Service", "skep-artifacts")
	for _, flag := range []string{
		"--artifact-address=:9790", "--artifact-advertised-address=" + service.Name + "." + service.Namespace + ".svc.cluster.local.",
		"--artifact-storage=/var/lib/skep/artifacts",
	} {
		if !slices.Contains(container.Args, flag) {
			t.Errorf("there is no %s in %q", flag, container.Args)
		}
	}
	port := service.Spec.Ports[0]
	if port.Port != 80 || !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool {
		return p.Name == port.TargetPort.StrVal && p.ContainerPort == 9790
	}) {
		t.Errorf("port %v of the Service, ports %v of the container", port, container.Ports)
	}
	for name, value := range service.Spec.Selector {
		if pod.Labels[name] != value {
			t.Errorf("the Service chooses %s=%s, the Pod has %v", name, value, pod.Labels)
		}
	}
	if !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/var/lib/skep/artifacts" && !m.ReadOnly }) {
		t.Error("there is nowhere to store artifacts")
	}
	from := typed[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", "skep-artifacts").Spec.Ingress[0]
	if from.Ports[0].Port.StrVal != "artifacts" || from.From[0].NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] != "flux-system" {
		t.Errorf("reached by %+v", from)
	}
}

// TestOneOfManyReplicasServesArtifacts is why its own address is advertised: the Service would
// choose those that serve none as well.
func TestOneOfManyReplicasServesArtifacts(t *testing.T) {
	objects := setting{values: []string{`cue.enabled=true`, `controller.replicas=2`}}.objects(t)
	container := typed[appsv1.Deployment](t, objects, "Deployment", "skep-controller").Spec.Template.Spec.Containers[0]
	if !slices.Contains(container.Args, "--artifact-advertised-address=$(POD_IP)") {
		t.Errorf("arguments %q", container.Args)
	}
	if !slices.ContainsFunc(container.Env, func(e corev1.EnvVar) bool {
		return e.Name == "POD_IP" && e.ValueFrom.FieldRef.FieldPath == "status.podIP"
	}) {
		t.Errorf("environment %v", container.Env)
	}
}
