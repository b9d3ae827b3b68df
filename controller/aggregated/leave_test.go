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
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
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

// watched is an API server whose informers say when somebody follows them.
type watched struct {
	*informertest.FakeInformers
	added chan struct{}
}

// GetInformer implements cache.Informers.
func (w watched) GetInformer(ctx context.Context, o client.Object, options ...cache.InformerGetOption) (cache.Informer, error) {
	informer, err := w.FakeInformers.GetInformer(ctx, o, options...)
	return followed{informer, w.added}, err
}

type followed struct {
	cache.Informer
	added chan struct{}
}

// AddEventHandler implements cache.Informer.
func (f followed) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	defer close(f.added)
	return f.Informer.AddEventHandler(handler)
}

func TestAPIServicesGoWithTheNamespaceOfTheirServer(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), metav1.AddMetaToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	informers := watched{&informertest.FakeInformers{Scheme: scheme}, make(chan struct{})}
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
	<-informers.added
	now := metav1.Now()
	informer.Update(namespace("team", nil), namespace("team", &now))
	informer.Update(namespace("skep-system", nil), namespace("skep-system", nil))
	server.mu.Lock()
	if server.asked > 0 {
		t.Error("they are removed with another namespace, or with one that stays")
	}
	server.mu.Unlock()
	informer.Update(namespace("skep-system", nil), namespace("skep-system", &now))
	await.True(t, "the APIServices to be removed", 30*time.Second, func() bool { return len(server.all()) == 2 })
	if got := server.all(); !slices.Equal(got, []string{"APIService v1.maps.skep.dev", "APIService v1.view.skep.dev"}) {
		t.Errorf("%q were removed", got)
	}
}
