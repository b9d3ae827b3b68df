package containers

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// Keeper is a Source that keeps no more labels of a pod than a bound, and others that are named.
type Keeper interface {
	Source
	// Keep names the keys of labels that selectors ask for. Pods have these, whatever other
	// labels they have. It replaces the keys of the last call.
	Keep(keys map[string]bool)
}

// kept are the keys that selectors ask for. Its methods may be called from any goroutine.
type kept struct {
	mu   sync.Mutex
	keys map[string]bool
	// grown has a value when keys were added that pods may lack.
	grown chan struct{}
}

func newKept() *kept { return &kept{grown: make(chan struct{}, 1)} }

// Keep implements Keeper.
func (s *source) Keep(keys map[string]bool) { s.kept.replace(keys) }

func (k *kept) replace(keys map[string]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.keys
	k.keys = maps.Clone(keys)
	for key := range keys {
		if before[key] {
			continue
		}
		select {
		case k.grown <- struct{}{}:
		default:
		}
		return
	}
}

// of returns the labels of a pod's sandbox that are kept: those that are named, and of the others
// the first by their keys, up to maxLabels. isCut reports that some are left out.
func (k *kept) of(labels map[string]string) (is map[string]string, isCut bool) {
	k.mu.Lock()
	keys := k.keys
	k.mu.Unlock()
	is = map[string]string{}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if strings.HasPrefix(key, kubeletLabels) {
			continue
		}
		if !keys[key] {
			size += len(key) + len(labels[key])
		}
		if keys[key] || size <= maxLabels {
			is[key] = labels[key]
		}
	}
	return is, size > maxLabels
}

// relabel gives a pod that lacks labels those that are kept by now.
func (s *state) relabel(sandbox string, labels map[string]string, k *kept) {
	s.change(func() []Pod {
		p, ok := s.pods[sandbox]
		if !ok || !p.IsCut {
			return nil
		}
		now, isCut := k.of(labels)
		if maps.Equal(now, p.Labels) {
			return nil
		}
		p.Labels, p.IsCut = now, isCut
		s.pods[sandbox] = p
		return []Pod{p}
	})
}
