package application

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// generations remember since which metadata.generation an application asks nodes
// for the same. An undo names one, and may come in one write with a change that asks
// nothing else of nodes: there is no generation then that has both.
type generations struct {
	mu   sync.Mutex
	byID map[v1alpha1.Identity]asking
}

// asking is what an application asks for, by gate.Generation, since when, and the
// generation that was seen last.
type asking struct {
	uid                     types.UID
	definition, since, seen int64
}

// firstSeen notes what an application asks for, and tells since when it does.
func (g *generations) firstSeen(app application, definition int64) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byID == nil {
		g.byID = map[v1alpha1.Identity]asking{}
	}
	now := asking{app.GetUID(), definition, app.GetGeneration(), app.GetGeneration()}
	switch known := g.byID[app.Identity()]; {
	case known.uid != now.uid:
	case now.seen < known.seen:
		// The cache shows what was.
		return now.since
	case known.definition == definition && now.seen <= known.seen+1:
		// One that was not seen may have asked for something else, and be what the
		// undo is of.
		now.since = known.since
	}
	g.byID[app.Identity()] = now
	return now.since
}

func (g *generations) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.byID)
}

func (g *generations) forget(id v1alpha1.Identity) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byID, id)
}
