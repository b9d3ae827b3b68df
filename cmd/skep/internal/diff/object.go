package diff

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
)

// lastApplied is where kubectl apply without --server-side keeps what it applied.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// authored are the fields of metadata that definitions have.
var authored = []string{"name", "namespace", "labels", "annotations", "finalizers", "ownerReferences"}

// document is an object as YAML, without what nobody writes into a definition: status, what
// the API server keeps of it, and the annotation that Skep's own admission writes. Those by
// which people steer Skep, such as rollout-undo and confirm, are shown.
func document(o *unstructured.Unstructured) (string, error) {
	plain := o.DeepCopy()
	delete(plain.Object, "status")
	metadata, _, err := unstructured.NestedMap(plain.Object, "metadata")
	if err != nil {
		return "", err
	}
	annotations := plain.GetAnnotations()
	maps.DeleteFunc(annotations, func(name, _ string) bool { return name == lastApplied || name == v1alpha1.AnnotationRequester })
	metadata["annotations"] = annotations
	if len(annotations) == 0 {
		delete(metadata, "annotations")
	}
	if len(plain.GetLabels()) == 0 {
		delete(metadata, "labels")
	}
	maps.DeleteFunc(metadata, func(field string, _ any) bool { return !slices.Contains(authored, field) })
	plain.Object["metadata"] = metadata
	doc, err := display.YAML(plain.Object)
	return string(doc), err
}

// The labels and annotations by which tools say that an object is theirs, and may remove it.
const (
	fluxName      = "kustomize.toolkit.fluxcd.io/name"
	fluxNamespace = "kustomize.toolkit.fluxcd.io/namespace"
	fluxPrune     = "kustomize.toolkit.fluxcd.io/prune"
	fluxReconcile = "kustomize.toolkit.fluxcd.io/reconcile"
	fluxOff       = "disabled"

	argoTracking = "argocd.argoproj.io/tracking-id"
	argoInstance = "app.kubernetes.io/instance"
	argoOptions  = "argocd.argoproj.io/sync-options"
	argoNoPrune  = "Prune=false"
	argoManager  = "argocd-controller"
)

// ownerOf is the Kustomization of Flux or the Application of Argo CD that applied an object;
// empty where neither did. Argo CD's tracking-id begins with the application's name; its older
// label is one of anybody's, and counts where Argo CD wrote the object.
func ownerOf(o *unstructured.Unstructured) string {
	labels := o.GetLabels()
	application, _, tracked := strings.Cut(o.GetAnnotations()[argoTracking], ":")
	switch {
	case labels[fluxName] != "":
		return "Kustomization " + labels[fluxNamespace] + "/" + labels[fluxName]
	case tracked:
		return "Application " + application
	case labels[argoInstance] != "" && managedBy(o, argoManager):
		return "Application " + labels[argoInstance]
	}
	return ""
}

// keptByOwner reports whether an object tells its owner not to remove it.
func keptByOwner(o *unstructured.Unstructured) bool {
	for _, marks := range []map[string]string{o.GetLabels(), o.GetAnnotations()} {
		if strings.EqualFold(marks[fluxPrune], fluxOff) || strings.EqualFold(marks[fluxReconcile], fluxOff) {
			return true
		}
	}
	return slices.ContainsFunc(strings.Split(o.GetAnnotations()[argoOptions], ","), func(option string) bool {
		return strings.TrimSpace(option) == argoNoPrune
	})
}

// adopt gives an object what its owner adds to every object that it applies, as live has it:
// without that, the diff would say that the owner gives it up.
func adopt(o, live *unstructured.Unstructured) {
	if ownerOf(live) == "" {
		return
	}
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	for _, name := range []string{fluxName, fluxNamespace, argoInstance} {
		labels = withDefault(labels, name, live.GetLabels()[name])
	}
	annotations = withDefault(annotations, argoTracking, live.GetAnnotations()[argoTracking])
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
}

// withDefault has a map hold a value, unless that is empty or the map has another.
func withDefault(m map[string]string, name, value string) map[string]string {
	if value == "" {
		return m
	}
	if m == nil {
		m = map[string]string{}
	}
	m[name] = cmp.Or(m[name], value)
	return m
}

// managedBy reports whether a manager wrote fields of the object.
func managedBy(o *unstructured.Unstructured, manager string) bool {
	for _, f := range o.GetManagedFields() {
		if f.Manager == manager && f.Subresource == "" {
			return true
		}
	}
	return false
}

// overlaid is live with what a definition says on top of it: what an API server would make of
// it, as far as that can be known without one. Lists of one length are taken for the same list.
func overlaid(live, definition any) any {
	switch definition := definition.(type) {
	case map[string]any:
		was, ok := live.(map[string]any)
		if !ok {
			return definition
		}
		out := maps.Clone(was)
		for field, value := range definition {
			out[field] = overlaid(was[field], value)
		}
		return out
	case []any:
		was, ok := live.([]any)
		if !ok || len(was) != len(definition) {
			return definition
		}
		out := make([]any, len(definition))
		for i, value := range definition {
			out[i] = overlaid(was[i], value)
		}
		return out
	}
	return definition
}
