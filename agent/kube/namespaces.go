package kube

import (
	"context"
	"fmt"
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// namespaces are the labels of the cluster's namespaces, and nothing else of them. They are
// watched from the first question on: an agent without an intent that chooses pods by the labels
// of their namespaces asks the API server for none. It is a cache.TransformingStore.
type namespaces struct {
	// changed is called when labels changed, and when all are known.
	changed func()
	// asked is closed at the first question.
	asked chan struct{}
	ask   sync.Once

	mu  sync.Mutex
	all map[string]map[string]string
	// synced: all has every namespace.
	synced bool
}

func newNamespaces(changed func()) *namespaces {
	return &namespaces{changed: changed, asked: make(chan struct{}), all: map[string]map[string]string{}}
}

// labels returns the labels of a namespace, not to be changed; false before all are known. One
// that the API server does not name has none: a pod outlives its namespace for a while.
func (n *namespaces) labels(namespace string) (map[string]string, bool) {
	n.ask.Do(func() { close(n.asked) })
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all[namespace], n.synced
}

// followNamespaces watches the namespaces, once somebody asked.
func (a *Agent) followNamespaces(ctx context.Context) {
	select {
	case <-a.namespaces.asked:
		a.api.metadata("namespaces", "").follow(ctx, a.namespaces, a.opts.Log)
	case <-ctx.Done():
	}
}

// Transformer implements cache.TransformingStore: what a list holds until its end is small too.
func (n *namespaces) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		m, ok := obj.(*metav1.PartialObjectMetadata)
		if !ok {
			return obj, nil
		}
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: m.Name, ResourceVersion: m.ResourceVersion, Labels: m.Labels, Annotations: initialEventsEnd(m.Annotations)}}, nil
	}
}

// initialEventsEnd keeps the annotation by which the API server ends a list that it sends by a
// watch, which the reflector looks for.
func initialEventsEnd(annotations map[string]string) map[string]string {
	if value, ends := annotations[metav1.InitialEventsAnnotationKey]; ends {
		return map[string]string{metav1.InitialEventsAnnotationKey: value}
	}
	return nil
}

// Add implements cache.ReflectorStore.
func (n *namespaces) Add(obj any) error {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("take labels of namespace: have a %T", obj)
	}
	n.mu.Lock()
	before, there := n.all[m.Name]
	same := there && maps.Equal(before, m.Labels)
	n.all[m.Name] = m.Labels
	n.mu.Unlock()
	if !same {
		n.changed()
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (n *namespaces) Update(obj any) error { return n.Add(obj) }

// Delete implements cache.ReflectorStore.
func (n *namespaces) Delete(obj any) error {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("forget namespace: have a %T", obj)
	}
	n.mu.Lock()
	delete(n.all, m.Name)
	n.mu.Unlock()
	n.changed()
	return nil
}

// Replace implements cache.ReflectorStore.
func (n *namespaces) Replace(list []any, _ string) error {
	all := make(map[string]map[string]string, len(list))
	for _, obj := range list {
		m, ok := obj.(*metav1.PartialObjectMetadata)
		if !ok {
			return fmt.Errorf("take labels of namespaces: have a %T", obj)
		}
		all[m.Name] = m.Labels
	}
	n.mu.Lock()
	same := n.synced && maps.EqualFunc(n.all, all, maps.Equal[map[string]string])
	n.all, n.synced = all, true
	n.mu.Unlock()
	if !same {
		n.changed()
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (n *namespaces) Resync() error { return nil }
