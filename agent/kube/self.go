package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/atomicfile"
)

// labelsFile keeps the node's labels in the state directory.
const labelsFile = "node.json"

// kept is what the file holds.
type kept struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
}

// self is the agent's own Node, of which it needs the labels, which choose what
// runs here, and the uid, which owns the BpfNode. The labels are kept on disk: a
// node that comes back without an API server selects as it did before. It is a
// cache.ReflectorStore.
type self struct {
	path string
	name string
	log  *slog.Logger
	// relabel and changed are told what is new.
	relabel func(map[string]string)
	changed func()
	// known is closed when there are labels.
	known chan struct{}

	mu  sync.Mutex
	now map[string]string
	uid types.UID
}

// openSelf reads what is on disk. Labels of another node, and what cannot be
// read, count as none.
func openSelf(path, name string, log *slog.Logger) *self {
	s := &self{path: path, name: name, log: log, known: make(chan struct{})}
	body, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s
	}
	var k kept
	if err == nil {
		err = json.Unmarshal(body, &k)
	}
	if err == nil && k.Name != name {
		err = fmt.Errorf("they are those of node %q", k.Name)
	}
	if err != nil {
		log.Warn("cannot use the labels that were kept; nothing is loaded until the API server tells them", "path", path, "error", err)
		return s
	}
	s.now = orEmpty(k.Labels)
	close(s.known)
	return s
}

// orEmpty makes a node without labels of what would be one that is not asked.
func orEmpty(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}

// followSelf watches the node.
func (a *Agent) followSelf(ctx context.Context) {
	a.self.relabel, a.self.changed = a.holder.Relabel, a.poke
	a.api.metadata("nodes", a.self.name).follow(ctx, a.self, a.opts.Log)
}

// labels are the last ones known, nil where there are none.
func (s *self) labels() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// owner is the reference that makes the BpfNode go with its Node, nil where the
// Node was not seen yet.
func (s *self) owner() []metav1.OwnerReference {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uid == "" {
		return nil
	}
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: s.name, UID: s.uid}}
}

// await waits until labels are known, and tells false where the context ends
// before.
func (s *self) await(ctx context.Context) bool {
	select {
	case <-s.known:
		return true
	case <-ctx.Done():
		return false
	}
}

// Add implements cache.ReflectorStore.
func (s *self) Add(obj any) error {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("look at node: have a %T", obj)
	}
	labels := orEmpty(m.Labels)
	s.mu.Lock()
	sameUID, sameLabels := s.uid == m.UID, s.now != nil && maps.Equal(s.now, labels)
	s.uid, s.now = m.UID, labels
	s.mu.Unlock()
	if !sameLabels {
		if err := s.keep(labels); err != nil {
			s.log.Error("keep the node's labels; a reboot without API server would select by the old ones", "error", err)
		}
		s.relabel(labels)
		select {
		case <-s.known:
		default:
			close(s.known)
		}
	}
	if !sameUID {
		s.changed()
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (s *self) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore. A Node that is gone changes nothing
// on the node.
func (s *self) Delete(any) error { return nil }

// Replace implements cache.ReflectorStore.
func (s *self) Replace(list []any, _ string) error {
	for _, obj := range list {
		if err := s.Add(obj); err != nil {
			return err
		}
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *self) Resync() error { return nil }

// keep writes the labels in one step, which a crash of the machine does not tear.
func (s *self) keep(labels map[string]string) error {
	body, err := json.Marshal(kept{Name: s.name, Labels: labels})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(s.path, body)
}
