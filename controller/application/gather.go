package application

import (
	"sync"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// reportSpacing is how long node reports are gathered before the next status is computed
// from them: a thousand nodes that load at once make a few patches, not a thousand.
const reportSpacing = 500 * time.Millisecond

// moment is how long the first report after silence waits. It lets the reports that
// arrive with it be read together.
const moment = 5 * time.Millisecond

// reportDebounce spaces the reconciles that node reports ask for. The first report after
// silence is reconciled at once. Reports that follow are reconciled together, one
// reportSpacing after the reconcile before.
type reportDebounce struct {
	mu sync.Mutex
	// due is when the last reconcile of an application was, or is, due.
	due map[v1alpha1.Identity]time.Time
	// limit is the number of entries at which old ones are dropped.
	limit int
}

// minGathered is the number of entries below which none is dropped.
const minGathered = 1024

// delay returns how long a reconcile has to wait that is asked for now.
func (g *reportDebounce) delay(id v1alpha1.Identity, now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	due := g.due[id]
	switch since := now.Sub(due); {
	case since < 0:
	case since < reportSpacing:
		due = due.Add(reportSpacing)
	default:
		due = now.Add(moment)
	}
	g.drop(now)
	g.due[id] = due
	return due.Sub(now)
}

func (g *reportDebounce) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.due, g.limit = nil, 0
}

// drop makes room: a node may report applications that never existed.
func (g *reportDebounce) drop(now time.Time) {
	if g.due == nil {
		g.due = map[v1alpha1.Identity]time.Time{}
	}
	if len(g.due) < max(g.limit, minGathered) {
		return
	}
	for id, due := range g.due {
		if now.Sub(due) >= reportSpacing {
			delete(g.due, id)
		}
	}
	// Twice what is left, so that the cost of a drop is shared by many reports.
	g.limit = 2 * len(g.due)
}
