package aggregated

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/test/harness/await"
)

// removed is an API server that answers the first deletion with an error.
type removed struct {
	client.Client
	mu    sync.Mutex
	asked int
	names []string
}

// Delete implements client.Client.
func (r *removed) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked++; r.asked == 1 {
		return errors.New("the server is busy")
	}
	r.names = append(r.names, o.GetObjectKind().GroupVersionKind().Kind+" "+o.GetName())
	return nil
}

func (r *removed) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(slices.Values(slices.Compact(slices.Sorted(slices.Values(r.names)))))
}

func TestAPIServicesGoWithTheNamespaceOfTheirServer(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), metav1.AddMetaToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	informers := &informertest.FakeInformers{Scheme: scheme}
	namespace := func(name string, deleted *metav1.Time) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: name, DeletionTimestamp: deleted}}
	}
	informer, err := informers.FakeInformerFor(t.Context(), namespace("", nil))
	if err != nil {
		t.Fatal(err)
	}
	server := &removed{}
	s := &Server{Writer: server, Informers: informers, Namespace: "skep-system",
		APIs: []API{{Group: "view.skep.dev", Version: "v1"}, {Group: "maps.skep.dev", Version: "v1"}}}
	ctx, stop := context.WithCancel(t.Context())
	var left sync.WaitGroup
	left.Go(func() { s.leave(ctx) })
	defer left.Wait()
	defer stop()
	now := metav1.Now()
	// Its handler is added before long; until then events reach none.
	await.True(t, "the APIServices to be removed", 30*time.Second, func() bool {
		informer.Update(namespace("team", nil), namespace("team", &now))
		if len(server.all()) > 0 {
			return len(server.all()) == 2
		}
		informer.Update(namespace("skep-system", nil), namespace("skep-system", &now))
		return false
	})
	if got := server.all(); !slices.Equal(got, []string{"APIService v1.maps.skep.dev", "APIService v1.view.skep.dev"}) {
		t.Errorf("%q were removed", got)
	}
}
