package serve

import (
	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/skepmap/protocol"
)

// mostHeld is how many ring buffers that were replaced the readers of an owner hold at most, however small they are.
const mostHeld = 64

// passed is a ring buffer whose descriptor readers of an owner were given.
type passed struct {
	owner string
	bytes uint64
}

// checkHeld returns an error while the readers of an owner have ring buffers open that are not loaded any more, and more of them than a
// reader has that was not told yet. Their memory is the agent's, and no bound on what is loaded counts it.
func (s *Server) checkHeld(owner string) error {
	if s.o.IsLoaded == nil {
		return nil
	}
	n, bytes := 0, uint64(0)
	for id, p := range s.passedTo(owner) {
		if s.o.IsLoaded(id) {
			continue
		}
		if !exists(id) {
			s.mu.Lock()
			delete(s.passed, id)
			s.mu.Unlock()
			continue
		}
		n, bytes = n+1, bytes+p.bytes
	}
	if n >= mostHeld || n > 1 && bytes > s.o.Held {
		return reject(protocol.Busy, "the readers of namespace %s hold %d ring buffers of %d bytes that were replaced or withdrawn, and no more than %d bytes are "+
			"allowed; close them, or delete the pods", owner, n, bytes, s.o.Held)
	}
	return nil
}

// passedTo are the ring buffers that readers of an owner were given.
func (s *Server) passedTo(owner string) map[ebpf.MapID]passed {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[ebpf.MapID]passed{}
	for id, p := range s.passed {
		if p.owner == owner {
			all[id] = p
		}
	}
	return all
}

// exists reports whether the kernel has a map still. A process that may not ask (CAP_SYS_ADMIN) takes it for gone.
func exists(id ebpf.MapID) bool {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return false
	}
	_ = m.Close()
	return true
}
