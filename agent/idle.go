package agent

import (
	"time"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/state/pins"
)

// resyncAfter is how long after a full reconcile the next one is due, whatever happens.
const resyncAfter = 30 * time.Second

// idle is the state of a node where nothing is left to do: every link, and what the
// kernel reported of it. The kernel sends no event when somebody detaches a link or
// replaces its program, so sweeps compare these; everything else either wakes the
// agent or is found by the next resync.
type idle struct {
	links []idleLink
}

type idleLink struct {
	link  pins.Held
	facts pins.Facts
}

// newIdle returns the state that a reconcile left, or nil where it changed something or
// left something to do.
func newIdle(p *reconcile) *idle {
	if !p.isDone(false) {
		return nil
	}
	r := &idle{}
	for _, links := range p.loop.live.Links {
		for _, l := range links {
			// Of filters, the kernel sends an event.
			if _, ok := l.Link.(*clsact.Filter); !ok {
				r.links = append(r.links, idleLink{l.Link, p.look.Seen(l.Path)})
			}
		}
	}
	for device, c := range p.loop.live.Chains {
		r.links = append(r.links, idleLink{c.Link, p.look.Seen(p.env.pins.ChainPath(device))})
	}
	return r
}

// isDone reports whether the reconcile had nothing to do, and no later one has before
// something changes, such as that links which are being closed end. Its own actions count as
// nothing where it may have acted.
func (rec *reconcile) isDone(mayHaveActed bool) bool {
	if !rec.observed || rec.acted && !mayHaveActed || rec.decisions.Again || rec.actor.IsEnding() || rec.actor.IsFreeing() ||
		rec.objectRound.Fetching || rec.loadRound.HasAsked() || rec.look.HasUnreadable() ||
		!rec.loop.admission.History.IsKept() || rec.intents.HasUnkept() || rec.loop.live.Remnants.HasClosed() {
		return false
	}
	for _, c := range rec.loop.live.Chains {
		if c.Version == nil || len(c.Former) > 0 {
			return false
		}
	}
	for _, app := range rec.intents.Applications {
		out := rec.decisions.Outcomes[app.Newest.Payload().UID]
		if out == nil || !out.IsDone() {
			return false
		}
	}
	return true
}

// isIdle reports whether every link is as the last reconcile left it, so that this sweep
// needs no reconcile.
func (a *Agent) isIdle() bool {
	a.work.Lock()
	defer a.work.Unlock()
	if a.loop.idle == nil || a.isFullDue() {
		return false
	}
	for _, l := range a.loop.idle.links {
		if facts, err := pins.Inspect(l.link); err != nil || facts != l.facts {
			return false
		}
	}
	return true
}

// isFullDue reports whether everything is to be looked at anew.
func (a *Agent) isFullDue() bool { return !a.opts.Clock().Before(a.loop.fullAt.Add(resyncAfter)) }

// sweep reports whether this sweep needs a reconcile, and which one: where an incremental
// reconcile made links, one more of these looks at them, and one reads network namespaces again
// that could not be read.
func (a *Agent) sweep() bool {
	isIdle := a.isIdle()
	a.work.Lock()
	defer a.work.Unlock()
	switch {
	case isIdle:
		return a.loop.lookups.IsDue(a.opts.Clock())
	case a.loop.idle != nil || !a.loop.acted || a.isFullDue():
		a.changes.AskFull()
	}
	return true
}
