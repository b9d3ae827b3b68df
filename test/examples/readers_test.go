package examples_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/examples"
)

// TestReadersAreGrantedTheirMaps compares the DaemonSet of an example with its definition: whatever differs, the pod would wait for ever.
func TestReadersAreGrantedTheirMaps(t *testing.T) {
	files, err := fs.Glob(examples.FS, "*/daemonset.yaml")
	if err != nil || len(files) != 2 {
		t.Fatalf("%v have readers, want 2: %v", files, err)
	}
	for _, file := range files {
		name, _, _ := bytes.Cut([]byte(file), []byte("/"))
		t.Run(string(name), func(t *testing.T) {
			o := objectsOf(t, file)
			app := applications(t, string(name), 1)[0]
			pod := o.reader.Spec.Template.Spec
			got := fmt.Sprint(o.namespace.Name, " ", o.account.Namespace, "/", o.account.Name)
			want := fmt.Sprint(o.reader.Namespace, " ", o.reader.Namespace, "/", pod.ServiceAccountName)
			if got != want {
				t.Errorf("it makes %s, and needs %s", got, want)
			}
			if level := o.namespace.Labels["pod-security.kubernetes.io/enforce"]; level != "restricted" {
				t.Errorf("its namespace enforces %q", level)
			}
			attributes := pod.Volumes[0].CSI.VolumeAttributes
			if !maps.Equal(attributes, map[string]string{"clusterApplication": app.GetName()}) {
				t.Errorf("its volume is of %v, and the definition of %s", attributes, app.GetName())
			}
			for name, m := range app.Body().Maps {
				if !slices.ContainsFunc(m.Export, func(e v1alpha1.MapExport) bool {
					return slices.Contains(e.Namespaces, o.reader.Namespace) && slices.Contains(e.ServiceAccounts, pod.ServiceAccountName)
				}) {
					t.Errorf("map %s is not granted to it", name)
				}
			}
		})
	}
}

// objects are those of a reader's file.
type objects struct {
	namespace *corev1.Namespace
	account   *corev1.ServiceAccount
	reader    *appsv1.DaemonSet
}

// objectsOf decodes them as strictly as kubectl does.
func objectsOf(t *testing.T, file string) (o objects) {
	t.Helper()
	body, err := fs.ReadFile(examples.FS, file)
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for document := range bytes.SplitSeq(body, []byte("\n---\n")) {
		if document, err = utilyaml.ToJSON(document); err != nil {
			t.Fatal(err)
		}
		one, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		switch one := one.(type) {
		case *corev1.Namespace:
			o.namespace = one
		case *corev1.ServiceAccount:
			o.account = one
		case *appsv1.DaemonSet:
			o.reader = one
		}
	}
	if o.namespace == nil || o.account == nil || o.reader == nil {
		t.Fatalf("%s lacks a Namespace, a ServiceAccount or a DaemonSet", file)
	}
	return o
}
