package containers

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/skep-dev/skep/agent/pods/process"
)

// state is what one run of a source knows. Its methods may be called from any goroutine.
type state struct {
	wake func(changed ...Pod)
	mu   sync.Mutex
	// read reports that the whole list was read once.
	read       bool
	containers map[string]Container
	// pods are by their sandboxes' ids.
	pods    map[string]Pod
	skipped map[string]Skipped
	away    *AwayError
	// current is what Snapshot returned last; nil after a change.
	current *Snapshot
	// retired: the state is not used any more, and no caller is woken.
	retired bool
}

func newState(wake func(changed ...Pod)) *state {
	return &state{wake: wake, containers: map[string]Container{}, pods: map[string]Pod{}, skipped: map[string]Skipped{}}
}

// snapshot is what is known. It is made anew after a change only.
func (s *state) snapshot() (*Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		s.current = s.build()
	}
	switch {
	case s.away != nil:
		return s.current, s.away
	case !s.read:
		return s.current, ErrNotRead
	}
	return s.current, nil
}

func (s *state) build() *Snapshot {
	if !s.read {
		return &Snapshot{partial: true}
	}
	all := make([]Container, 0, len(s.containers))
	for _, c := range s.containers {
		c.Pod = s.pods[c.Pod.SandboxID]
		all = append(all, c)
	}
	built := NewSnapshot(all, slices.Collect(maps.Values(s.pods))...)
	built.skipped = slices.SortedFunc(maps.Values(s.skipped), func(a, b Skipped) int { return strings.Compare(a.ID, b.ID) })
	return built
}

// change changes what is known, and wakes those who ask where the containers of pods are others.
func (s *state) change(do func() (changed []Pod)) {
	s.mu.Lock()
	changed := do()
	if len(changed) > 0 {
		s.current = nil
	}
	wake := len(changed) > 0 && s.read && !s.retired
	s.mu.Unlock()
	if wake {
		s.wake(changed...)
	}
}

// answered notes that the whole list was read.
func (s *state) answered() {
	s.mu.Lock()
	first := !s.read
	s.read, s.away = true, nil
	if first {
		s.current = nil
	}
	wake := first && !s.retired
	s.mu.Unlock()
	if wake {
		s.wake()
	}
}

// failed notes that the runtime does not answer. It wakes for the first answer only.
func (s *state) failed(endpoint string, now time.Time, err error) {
	s.mu.Lock()
	away := &AwayError{Endpoint: endpoint, Since: now, Err: err}
	first := s.away == nil && !s.read && !s.retired
	if s.away != nil {
		away.Since = s.away.Since
	}
	s.away = away
	s.mu.Unlock()
	if first {
		s.wake()
	}
}

// retire ends all wakes.
func (s *state) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
}

// pod returns the pod of a sandbox.
func (s *state) pod(sandbox string) (Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pods[sandbox]
	return p, ok
}

// container returns the container with the id.
func (s *state) container(id string) (Container, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.containers[id]
	return c, ok
}

// has reports whether the container, or the sandbox, is known.
func (s *state) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, container := s.containers[id]
	_, pod := s.pods[id]
	return container || pod
}

// addPod adds a pod, or replaces it.
func (s *state) addPod(p Pod) {
	s.change(func() []Pod {
		delete(s.skipped, p.SandboxID)
		s.pods[p.SandboxID] = p
		return []Pod{p}
	})
}

// add adds a container, with what its process says of its pod where the sandbox has none.
func (s *state) add(c Container, of Pod) {
	s.change(func() []Pod {
		delete(s.skipped, c.ID)
		s.containers[c.ID] = c
		// The sandbox's process may have ended meanwhile.
		of.Sandbox = s.pods[of.SandboxID].Sandbox
		s.pods[of.SandboxID] = of
		return []Pod{of}
	})
}

// remove takes away a container, or a sandbox whose process ended. A pod stays while it has
// containers.
func (s *state) remove(id string) {
	s.change(func() []Pod {
		delete(s.skipped, id)
		if c, ok := s.containers[id]; ok {
			delete(s.containers, id)
			p := s.pods[c.Pod.SandboxID]
			if p.Sandbox.PID == 0 && !s.used(p.SandboxID) {
				delete(s.pods, p.SandboxID)
			}
			return []Pod{p}
		}
		p, ok := s.pods[id]
		switch {
		case !ok:
			return nil
		case s.used(id):
			// There is no way into the pod by the sandbox any more.
			p.Sandbox = process.Process{}
			s.pods[id] = p
		default:
			delete(s.pods, id)
		}
		return []Pod{p}
	})
}

// used reports whether the pod has containers.
func (s *state) used(sandbox string) bool {
	for _, c := range s.containers {
		if c.Pod.SandboxID == sandbox {
			return true
		}
	}
	return false
}

// listed takes away what the runtime does not list any more and has no process that says so: what
// is left out, and pods without a container whose sandbox has no process. Whatever has a
// process stays until that ends: the runtime may have lost its record.
func (s *state) listed(ids map[string]bool) {
	s.change(func() (changed []Pod) {
		maps.DeleteFunc(s.skipped, func(id string, _ Skipped) bool {
			if !ids[id] {
				s.current = nil
			}
			return !ids[id]
		})
		maps.DeleteFunc(s.pods, func(id string, p Pod) bool {
			gone := !ids[id] && p.Sandbox.PID == 0 && !s.used(id)
			if gone {
				changed = append(changed, p)
			}
			return gone
		})
		return changed
	})
}

// skip notes that a container or sandbox is left out.
func (s *state) skip(one Skipped) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skipped[one.ID], s.current = one, nil
}

// unskip forgets that a container or sandbox is left out.
func (s *state) unskip(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.skipped[id]; ok {
		delete(s.skipped, id)
		s.current = nil
	}
}

// all are the containers that are known.
func (s *state) all() map[string]Container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.containers)
}

// replace replaces all containers, and their pods. Another process of the same container wakes
// no caller.
func (s *state) replace(all map[string]Container) {
	s.change(func() []Pod {
		changed := append(podsWithout(s.containers, all), podsWithout(all, s.containers)...)
		s.containers, s.pods, s.current = all, make(map[string]Pod, len(all)), nil
		for _, c := range all {
			s.pods[c.Pod.SandboxID] = c.Pod
		}
		return changed
	})
}

// podsWithout returns the pods of the containers in some that are not in others.
func podsWithout(some, others map[string]Container) (pods []Pod) {
	for id, c := range some {
		if _, in := others[id]; !in {
			pods = append(pods, c.Pod)
		}
	}
	return pods
}
