package node

import (
	"fmt"
	"time"

	"github.com/skep-dev/skep/agent/plan"
)

// The bounds of healing: what is taken away so often within the window is put
// back ever more slowly, and is called contested.
const (
	contestedAfter = 5
	contestWindow  = time.Minute
)

// contest counts how often one link was put back.
type contest struct {
	heals      int
	last, next time.Time
}

// contested is the error of a link that is not put back yet.
type contested struct {
	heals int
	next  time.Time
}

// Error implements error.
func (c *contested) Error() string {
	return fmt.Sprintf("somebody else took it away %d times; it is put back at %s; find who (bpftool link, bpftool net)", c.heals, c.next.Format(time.TimeOnly))
}

// heal counts an action that puts back what somebody else changed, and tells
// to wait where it was put back too often.
func (p *pass) heal(a plan.Action) error {
	key, ok := p.healKey(a)
	if !ok {
		return nil
	}
	c := p.contests[key]
	if c == nil || p.now.Sub(c.last) > contestWindow && p.now.After(c.next) {
		c = &contest{}
		p.contests[key] = c
	}
	if p.now.Before(c.next) {
		return &contested{heals: c.heals, next: c.next}
	}
	c.heals++
	c.last = p.now
	if c.heals >= contestedAfter {
		c.next = p.now.Add(p.opts.BackOff.after(c.heals - contestedAfter + 1))
	}
	p.opts.Log.Warn("put back what somebody else changed", "action", a.String(), "times", c.heals)
	return nil
}

// healKey names the link that an action puts back; none where the action does
// what an intent changed.
func (p *pass) healKey(a plan.Action) (string, bool) {
	if a.Verb == plan.SetChain {
		c := p.held.chains[a.Ifindex]
		facts := p.facts[p.store.ChainPath(a.Ifindex)]
		if c == nil || c.Version == nil || len(a.Members) == 0 {
			return "", false
		}
		return p.store.ChainPath(a.Ifindex), facts.Severed || p.chainOf(a.Ifindex) != nil && p.chainOf(a.Ifindex).Members == nil
	}
	l := p.held.links[a.UID][a.Attachment.Key()]
	if l == nil || a.Verb == plan.Detach {
		return "", false
	}
	facts := p.facts[l.Path]
	return l.Path, facts.Severed || p.revisionOf(l, facts) == ""
}
