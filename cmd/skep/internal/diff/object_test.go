package diff

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// marked is an object with labels and annotations that a manager wrote.
func marked(manager string, labels, annotations map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: manager, Operation: metav1.ManagedFieldsOperationApply}})
	return o
}

func TestTheOwnerIsWhoSaysSo(t *testing.T) {
	type m = map[string]string
	for name, c := range map[string]struct {
		object *unstructured.Unstructured
		owner  string
		kept   bool
	}{
		"nobody":                 {marked("kubectl", nil, nil), "", false},
		"Flux":                   {marked("kustomize-controller", m{fluxName: "bpf", fluxNamespace: "flux-system"}, nil), "Kustomization flux-system/bpf", false},
		"Flux, never pruned":     {marked("kustomize-controller", m{fluxName: "bpf", fluxPrune: "Disabled"}, nil), "Kustomization /bpf", true},
		"Flux, not reconciled":   {marked("kustomize-controller", m{fluxName: "bpf"}, m{fluxReconcile: "disabled"}), "Kustomization /bpf", true},
		"Argo CD":                {marked(argoManager, nil, m{argoTracking: "bpf:skep.dev/BpfApplication:team/a"}), "Application bpf", false},
		"Argo CD, never pruned":  {marked(argoManager, nil, m{argoTracking: "bpf:x", argoOptions: "Validate=false, Prune=false"}), "Application bpf", true},
		"Argo CD by its label":   {marked(argoManager, m{argoInstance: "bpf"}, nil), "Application bpf", false},
		"a chart's label":        {marked("helm", m{argoInstance: "bpf"}, nil), "", false},
		"an annotation of sorts": {marked(argoManager, nil, m{argoTracking: "bpf"}), "", false},
	} {
		if owner, kept := ownerOf(c.object), keptByOwner(c.object); owner != c.owner || kept != c.kept {
			t.Errorf("%s: owner %q, kept %t; want %q, %t", name, owner, kept, c.owner, c.kept)
		}
	}
}

// TestOnlyWhatAdmissionWritesIsHidden has an author steer Skep by annotations, which is a change.
func TestOnlyWhatAdmissionWritesIsHidden(t *testing.T) {
	steering := []string{v1alpha1.AnnotationUndo, v1alpha1.AnnotationResume, v1alpha1.Group + "/confirm"}
	hidden := []string{v1alpha1.AnnotationRequester, lastApplied}
	annotations := map[string]string{}
	for _, name := range slices.Concat(steering, hidden) {
		annotations[name] = "1"
	}
	doc, err := document(marked("kubectl", nil, annotations))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range steering {
		if !strings.Contains(doc, name) {
			t.Errorf("%s is hidden in:\n%s", name, doc)
		}
	}
	for _, name := range hidden {
		if strings.Contains(doc, name) {
			t.Errorf("%s is shown in:\n%s", name, doc)
		}
	}
}

func TestWhatTheAPIServerRejectsIsLaidOverTheLiveObject(t *testing.T) {
	type m = map[string]any
	live := m{
		"metadata": m{"name": "a", "labels": m{"a": "1"}},
		"spec":     m{"priority": int64(50), "programs": []any{m{"name": "p", "hook": "xdp"}}, "names": []any{"a", "b"}},
	}
	wanted := m{
		"metadata": m{"name": "a", "labels": m{"b": "2"}},
		"spec":     m{"programs": []any{m{"name": "q"}}, "names": []any{"c"}},
	}
	want := m{
		"metadata": m{"name": "a", "labels": m{"a": "1", "b": "2"}},
		"spec":     m{"priority": int64(50), "programs": []any{m{"name": "q", "hook": "xdp"}}, "names": []any{"c"}},
	}
	if diff := cmp.Diff(want, overlaid(live, wanted)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
