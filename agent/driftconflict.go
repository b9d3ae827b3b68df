package agent

import (
	"fmt"
	"time"

	"github.com/skep-dev/skep/agent/plan"
)

// The bounds of healing: what is taken away so often within the window is put
// back ever more slowly, and is called contested.
const (
	driftConflictAfter  = 5
	driftConflictWindow = time.Minute
)

// driftConflict counts how often one link was put back.
type driftConflict struct {
	heals      int
	last, next time.Time
}

// driftConflictError is the error of a link that is not put back yet.
type driftConflictError struct {
	heals int
	next  time.Time
}

// Error implements error.
func (c *driftConflictError) Error() string {
	return fmt.Sprintf("somebody else took it away %d times; it is put back at %s; find who (bpftool link, bpftool net)", c.heals, c.next.Format(time.TimeOnly))
}

// heal counts an action that puts back what somebody else changed, and tells
// to wait where it was put back too often. What is no drift is empty.
func (p *pass) heal(a plan.Action) (Drift, error) {
	key, drift := p.drifted(a)
	if drift == "" {
		return "", nil
	}
	c := p.driftConflicts[key]
	if c == nil || c.over(p.now) {
		c = &driftConflict{}
		p.driftConflicts[key] = c
	}
	if p.now.Before(c.next) {
		return drift, &driftConflictError{heals: c.heals, next: c.next}
	}
	c.heals++
	c.last = p.now
	if c.heals >= driftConflictAfter {
		c.next = p.now.Add(p.opts.BackOff.after(c.heals - driftConflictAfter + 1))
	}
	p.opts.Log.Warn("put back what somebody else changed", "action", a.String(), "times", c.heals)
	return drift, nil
}

// endDriftConflicts forgets the links that were left alone for a while.
func (p *pass) endDriftConflicts() {
	for key, c := range p.driftConflicts {
		if c.over(p.now) {
			delete(p.driftConflicts, key)
		}
	}
}

// over reports whether a link was left alone for so long that its next loss is a
// first one.
func (c *driftConflict) over(now time.Time) bool {
	return now.Sub(c.last) > driftConflictWindow && now.After(c.next)
}

// drifted names the link that an action puts back, and how it drifted; nothing
// where the action does what an intent changed.
func (p *pass) drifted(a plan.Action) (string, Drift) {
	var (
		path    string
		foreign bool
	)
	if a.Verb == plan.SetChain {
		c, seen := p.owned.chains[a.Ifindex], p.chainOf(a.Ifindex)
		if c == nil || c.Version == nil || len(a.Members) == 0 {
			return "", ""
		}
		path, foreign = p.store.ChainPath(a.Ifindex), seen != nil && seen.Members == nil
	} else {
		l := p.owned.links[a.UID][a.Attachment.Key()]
		if l == nil || a.Verb == plan.Detach {
			return "", ""
		}
		path, foreign = l.Path, p.revisionOf(l, p.facts[l.Path]) == ""
	}
	switch {
	case p.facts[path].Severed:
		return path, Detached
	case foreign:
		return path, Replaced
	}
	return "", ""
}
