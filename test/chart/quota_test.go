package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/test/harness/controlplane"
)

// limited has an API server reject critical Pods where no quota speaks of them,
// as GKE's does.
const limited = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchScopes:
      - scopeName: PriorityClass
        operator: In
        values: [system-node-critical, system-cluster-critical]
`

func TestCriticalPodsAreLetInWhereOnlyAQuotaDoes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(file, []byte(limited), 0o600); err != nil {
		t.Fatal(err)
	}
	gke, err := controlplane.Start(t.Context(), controlplane.Options{WithoutCRDs: true, Flags: map[string][]string{"admission-control-config-file": {file}}})
	if err != nil {
		t.Fatal(err)
	}
	defer gke.Stop()
	c, err := client.New(gke.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	team := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: namespace}}
	for _, o := range []client.Object{team, account} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	critical := func(class string) error {
		return c.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "pod-"},
			Spec: corev1.PodSpec{PriorityClassName: class, Containers: []corev1.Container{{Name: "c", Image: "c"}}}}, client.DryRunAll)
	}
	if err := critical("system-node-critical"); err == nil || !strings.Contains(err.Error(), "insufficient quota to match these scopes") {
		t.Fatalf("without a quota: %v", err)
	}
	quota := typed[corev1.ResourceQuota](t, setting{}.objects(t), "ResourceQuota", "skep-critical-pods")
	if err := c.Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	// What the quota's own controller would count.
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}
	if err := c.Status().Update(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	for _, class := range []string{"system-node-critical", "system-cluster-critical"} {
		if err := critical(class); err != nil {
			t.Errorf("%s: %v", class, err)
		}
	}
}

func TestThereIsNoQuotaWhereNoneIsNeededOrWanted(t *testing.T) {
	for name, c := range map[string]struct {
		setting setting
		want    bool
	}{
		"there is by default":           {setting{}, true},
		"it can be left out":            {setting{values: []string{`resourceQuota.enabled=false`}}, false},
		"and in kube-system it is none": {setting{namespace: "kube-system"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			quota := func(o *unstructured.Unstructured) bool { return o.GetKind() == "ResourceQuota" }
			if found := slices.ContainsFunc(c.setting.objects(t), quota); found != c.want {
				t.Errorf("found: %t", found)
			}
		})
	}
}
