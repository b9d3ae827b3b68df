package kube

import (
	"maps"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

var _ cache.TransformingStore = (*namespaces)(nil)

func namespaceOf(name string, labels map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func TestLabelsOfNamespacesAreKnownOnceAllWereListed(t *testing.T) {
	changes := 0
	n := newNamespaces(func() { changes++ })
	if err := n.Add(namespaceOf("early", nil)); err != nil {
		t.Fatal(err)
	}
	if labels, known := n.labels("early"); known {
		t.Errorf("labels %v are known before the list", labels)
	}
	for _, step := range []struct {
		what    string
		do      func() error
		blue    map[string]string
		known   bool
		changes int
	}{
		{"the list", func() error {
			return n.Replace([]any{namespaceOf("blue", map[string]string{"team": "a"}), namespaceOf("green", nil)}, "1")
		}, map[string]string{"team": "a"}, true, 1},
		{"the same list again", func() error {
			return n.Replace([]any{namespaceOf("green", nil), namespaceOf("blue", map[string]string{"team": "a"})}, "2")
		}, map[string]string{"team": "a"}, true, 0},
		{"an update that changes no label", func() error { return n.Update(namespaceOf("blue", map[string]string{"team": "a"})) }, map[string]string{"team": "a"}, true, 0},
		{"another label", func() error { return n.Update(namespaceOf("blue", map[string]string{"team": "b"})) }, map[string]string{"team": "b"}, true, 1},
		{"a new namespace", func() error { return n.Add(namespaceOf("red", nil)) }, map[string]string{"team": "b"}, true, 1},
		{"its end", func() error { return n.Delete(namespaceOf("blue", nil)) }, nil, true, 1},
	} {
		before := changes
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		labels, known := n.labels("blue")
		if known != step.known || !maps.Equal(labels, step.blue) || changes-before != step.changes {
			t.Errorf("after %s: %v, known: %v, %d changes", step.what, labels, known, changes-before)
		}
	}
	if labels, known := n.labels("early"); !known || len(labels) > 0 {
		t.Errorf("a namespace that is not in the list has labels %v, known: %v", labels, known)
	}
}

func TestOfANamespaceItsLabelsAreKept(t *testing.T) {
	n := newNamespaces(func() {})
	full := namespaceOf("blue", map[string]string{"team": "a"})
	full.Annotations = map[string]string{"note": "long", metav1.InitialEventsAnnotationKey: "true"}
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	full.ResourceVersion = "7"
	got, err := n.Transformer()(full)
	if err != nil {
		t.Fatal(err)
	}
	m := got.(*metav1.PartialObjectMetadata)
	if len(m.ManagedFields) != 0 || m.Annotations["note"] != "" || m.Annotations[metav1.InitialEventsAnnotationKey] != "true" || m.ResourceVersion != "7" || m.Labels["team"] != "a" {
		t.Errorf("kept %+v", m)
	}
}

func TestWhatIsNoNamespaceIsAnError(t *testing.T) {
	var changes atomic.Int64
	n := newNamespaces(func() { changes.Add(1) })
	for what, err := range map[string]error{
		"Add": n.Add("x"), "Update": n.Update("x"), "Delete": n.Delete("x"), "Replace": n.Replace([]any{"x"}, "1"),
	} {
		if err == nil {
			t.Errorf("%s takes a string", what)
		}
	}
	if changes.Load() != 0 {
		t.Errorf("%d changes", changes.Load())
	}
}
