package agent

import "time"

// resyncAfter is how long after a full reconcile the next one is due, whatever happens.
const resyncAfter = 30 * time.Second

// noteRest notes how a reconcile left the node: everything that is not a link either wakes the agent, or is found by the
// next resync.
func (a *Agent) noteRest(rec *reconcile) {
	a.loop.rest = nil
	if rec.isDone(false) {
		a.loop.rest = rec.look.Rest()
	}
	a.loop.follows = rec.seen.IsIncremental() && (rec.isComing() || rec.acted && rec.isDone(true))
}

// isComing reports whether the reconcile left something that wakes the loop.
func (rec *reconcile) isComing() bool {
	return rec.observed && (rec.left || rec.actor.IsEnding() || rec.actor.IsMaking() || rec.objectRound.Fetching || rec.loadRound.HasAsked())
}

// isDone reports whether the reconcile had nothing to do, and no later one has before
// something changes, such as that links which are being closed end. Its own actions count as
// nothing where it may have acted.
func (rec *reconcile) isDone(mayHaveActed bool) bool {
	if !rec.observed || rec.left || rec.acted && !mayHaveActed || rec.decisions.Again || rec.actor.IsEnding() || rec.actor.IsFreeing() ||
		rec.objectRound.Fetching || rec.loadRound.HasAsked() || rec.look.HasUnreadable() ||
		!rec.loop.admission.History.IsKept() || rec.intents.HasUnkept() || rec.loop.live.Remnants.HasClosed() {
		return false
	}
	for _, c := range rec.loop.live.Chains() {
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
	return a.loop.rest != nil && !a.isFullDue() && a.loop.rest.IsUnchanged()
}

// isFullDue reports whether everything is to be looked at anew.
func (a *Agent) isFullDue() bool { return !a.opts.Clock().Before(a.loop.fullAt.Add(resyncAfter)) }

// sweep reports whether this sweep needs a reconcile, and which one: where an incremental
// reconcile made links, or left what wakes the loop, one more of these looks at them, and one reads network namespaces again
// that could not be read.
func (a *Agent) sweep() bool {
	isIdle := a.isIdle()
	a.work.Lock()
	defer a.work.Unlock()
	switch {
	case isIdle:
		return a.changes.ArePinsAsked() || a.loop.lookups.IsDue(a.opts.Clock())
	case a.loop.rest != nil || !a.loop.follows || a.isFullDue():
		a.changes.AskFull()
	}
	return true
}
