package controller

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/cueartifact"
	"github.com/skep-dev/skep/controller/cueartifact/archives"
	"github.com/skep-dev/skep/controller/pull"
	"github.com/skep-dev/skep/image/access"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/test/fixture/supply"
)

func TestAnotherNamespacesPullSecretIsNotRead(t *testing.T) {
	images := supply.Client(t, registry.Options{CacheDir: t.TempDir()}.ForInspection())
	var read []string
	secrets := &pull.Secrets{Namespace: "skep", Shared: access.NewShared(images, access.SharedOptions{}),
		Live: interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
				read = append(read, key.String())
				return context.Canceled
			},
		})}
	spec := v1alpha1.BpfApplicationSpec{Bytecode: v1alpha1.Bytecode{ImagePullSecrets: []v1alpha1.LocalSecret{{Name: "s"}}}}
	for namespace, app := range map[string]v1alpha1.Application{
		"team":    &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a"}, Spec: spec},
		"other":   &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a"}, Spec: spec},
		"cluster": &v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: spec},
	} {
		read = nil
		imagesFor(secrets)(t.Context(), namespace, app)
		if want := map[string]int{"team": 1}[namespace]; len(read) != want {
			t.Errorf("for a CueArtifact of namespace %s, Secrets are read: %v", namespace, read)
		}
	}
}

func TestRoomForArtifactsIsBesideWhatIsUnpacked(t *testing.T) {
	o := CueOptions{Concurrent: 3, Store: archives.Options{Dir: t.TempDir(), Address: ":9790", MaxBytes: 3 * 306 << 20}}
	_, err := registerCue(t.Context(), nil, o, nil, &cueartifact.Reconciler{})
	if err == nil || !strings.Contains(err.Error(), "up to 918 MiB while they are unpacked") {
		t.Errorf("room for 918 MiB and no archive: %v", err)
	}
}
