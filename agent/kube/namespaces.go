package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"

	"github.com/skep-dev/skep/atomicfile"
)

// namespaces are the labels of the cluster's namespaces, and nothing else of them. They are
// watched from the first question on: an agent without an intent that chooses pods by the labels
// of their namespaces asks the API server for none. Labels of those that were asked for are kept on
// disk: a node that comes back without an API server chooses as it did before. They may be older
// than what the agent acted by, where it was killed before it wrote them. It is a
// cache.TransformingStore.
type namespaces struct {
	path string
	log  *slog.Logger
	// changed is called when labels changed, and when all are known.
	changed func()
	// asked is closed at the first question.
	asked chan struct{}
	ask   sync.Once

	mu  sync.Mutex
	all map[string]map[string]string
	// synced: all has every namespace.
	synced bool
	// sought are the namespaces that were asked for, at most maxKept, and kept the labels on disk.
	sought map[string]bool
	kept   map[string]map[string]string
	// stale holds a value where the disk may have other labels.
	stale chan struct{}
}

// namespacesFile keeps labels of namespaces in the state directory.
const namespacesFile = "namespaces.json"

// The bounds of what is kept: how many namespaces, how much of one, and how much is read of the
// file, in bytes. One namespace with many labels keeps no other one from the disk.
const (
	maxKept      = 4096
	maxKeptOfOne = 16 << 10
	maxKeptBytes = 4 << 20
)

// openNamespaces reads what is on disk. What cannot be read counts as nothing.
func openNamespaces(path string, changed func(), log *slog.Logger) *namespaces {
	n := &namespaces{path: path, log: log, changed: changed, asked: make(chan struct{}), all: map[string]map[string]string{}, sought: map[string]bool{},
		stale: make(chan struct{}, 1)}
	var err error
	if n.kept, err = readKept(path); err != nil {
		log.Warn("cannot use the labels of namespaces that were kept; what chooses pods by them waits for the API server", "path", path, "error", err)
	}
	return n
}

// readKept reads a file of labels by namespace, of which each is one that the API server takes.
func readKept(path string) (map[string]map[string]string, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	body, err := io.ReadAll(io.LimitReader(file, maxKeptBytes+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxKeptBytes {
		return nil, fmt.Errorf("it has more than %d bytes", maxKeptBytes)
	}
	var all map[string]map[string]string
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, err
	}
	if len(all) > maxKept {
		return nil, fmt.Errorf("it has %d namespaces, more than %d", len(all), maxKept)
	}
	for name, labels := range all {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return nil, fmt.Errorf("namespace %.64q: %s", name, problems[0])
		}
		if err := metavalidation.ValidateLabels(labels, nil).ToAggregate(); err != nil {
			return nil, fmt.Errorf("labels of namespace %s: %w", name, err)
		}
	}
	return all, nil
}

// keepAll keeps labels on disk until the context ends, beside those who ask for them.
func (n *namespaces) keepAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.stale:
			n.keep()
		}
	}
}

// keep writes the labels of the namespaces that were asked for, where they are others than those on
// disk. One goroutine calls it.
func (n *namespaces) keep() {
	now, changed := n.toKeep()
	if !changed {
		return
	}
	body, err := json.Marshal(now)
	if err == nil && len(body) > maxKeptBytes {
		err = fmt.Errorf("they take %d bytes, and at most %d are kept", len(body), maxKeptBytes)
	}
	if err == nil {
		err = atomicfile.Write(n.path, body)
	}
	if err != nil {
		// Those on disk are others than the agent acts by. Without any, what runs stays as it is.
		n.log.Error("keep labels of namespaces; after a reboot without API server, what chooses pods by them waits", "error", errors.Join(err, remove(n.path)))
		now = nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept = now
}

// remove removes a file, if it is there.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// sizeOf is how many bytes labels have.
func sizeOf(labels map[string]string) (bytes int) {
	for key, value := range labels {
		bytes += len(key) + len(value)
	}
	return bytes
}

// toKeep returns the labels that belong on disk, and whether others are there.
func (n *namespaces) toKeep() (now map[string]map[string]string, changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.synced {
		return nil, false
	}
	now = make(map[string]map[string]string, len(n.sought))
	for name := range n.sought {
		if labels, there := n.all[name]; there && sizeOf(labels) <= maxKeptOfOne {
			now[name] = labels
		}
	}
	return now, !maps.EqualFunc(n.kept, now, maps.Equal[map[string]string])
}

// labels returns the labels of a namespace, not to be changed, as targets.NamespaceLabels does: those
// of an earlier start until all are known. One that the API server does not name has none: a pod
// outlives its namespace for a while.
func (n *namespaces) labels(namespace string) (labels map[string]string, known, current bool) {
	n.ask.Do(func() { close(n.asked) })
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.sought[namespace] && len(n.sought) < maxKept {
		n.sought[namespace] = true
		poke(n.stale)
	}
	if !n.synced {
		labels, kept := n.kept[namespace]
		return labels, kept, false
	}
	return n.all[namespace], true, true
}

// followNamespaces watches the namespaces, once somebody asked.
func (a *Agent) followNamespaces(ctx context.Context) {
	select {
	case <-a.namespaces.asked:
		var keeping sync.WaitGroup
		defer keeping.Wait()
		keeping.Go(func() { a.namespaces.keepAll(ctx) })
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
		poke(n.stale)
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
	poke(n.stale)
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
	poke(n.stale)
	if !same {
		n.changed()
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (n *namespaces) Resync() error { return nil }
