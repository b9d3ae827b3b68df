// Package serve answers readers of maps that may call no bpf(2), on the socket of their folder. It
// owns the server of package skepmap/protocol with its bounds, and must not decide who may what:
// it is given the grants.
package serve

import (
	"cmp"
	"errors"
	"slices"
	"sync"

	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/skepmap/raw"
)

// Granted is a map of a readers' folder.
type Granted struct {
	// Info is what the folder's listing has of the map.
	Info skepmap.MapInfo
	// Map is the map itself. The server takes the share over, and closes it.
	Map *Map
	// Groups are the groups of a host that the map is granted to, and what each may do. A reader
	// whose process is in several may do what any of them may. Nil is for the volume of a pod:
	// everyone who can connect may do what Info says.
	Groups map[uint32]skepmap.Access
}

// entry is a map that is granted.
type entry struct {
	Granted
	raw raw.Map
	// none is why the map has no entries that have keys.
	none error
	// mu is held for reading while the map is used.
	mu     sync.RWMutex
	closed bool
}

func newEntry(g Granted) *entry {
	e := &entry{Granted: g}
	e.raw, e.none = raw.New(g.Map.Map)
	return e
}

// use runs a function while the map stays open.
func (e *entry) use(do func() error) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		return errWithdrawn
	}
	return do()
}

// close closes the map as soon as it is not used any more.
func (e *entry) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	_ = e.Map.Close()
}

var errWithdrawn = errors.New("it is not granted to this reader, or not any more")

// rights are what a reader may do with a map.
type rights struct{ read, write, consume bool }

// covers reports whether all of others is allowed.
func (r rights) covers(others rights) bool {
	return (r.read || !others.read) && (r.write || !others.write) && (r.consume || !others.consume)
}

func (r rights) with(others rights) rights {
	return rights{r.read || others.read, r.write || others.write, r.consume || others.consume}
}

func rightsOf(a skepmap.Access) rights {
	switch a {
	case skepmap.Read:
		return rights{read: true}
	case skepmap.Write:
		return rights{read: true, write: true}
	case skepmap.Consume:
		return rights{consume: true}
	}
	return rights{}
}

// allows is what a process may do that is in these groups.
func (e *entry) allows(groups []uint32) rights {
	if e.Groups == nil {
		return rightsOf(e.Info.Access)
	}
	var r rights
	for _, group := range groups {
		r = r.with(rightsOf(e.Groups[group]))
	}
	return r
}

// sameMap reports whether a grant is of the same map, so that what is open can stay.
func (e *entry) sameMap(other *entry) bool {
	return e.Map.ID == other.Map.ID && cmp.Compare(e.Info.Generation, other.Info.Generation) == 0
}

// unique are groups without repetition.
func unique(groups []uint32) []uint32 {
	slices.Sort(groups)
	return slices.Compact(groups)
}
