package act

import (
	"time"

	"github.com/skep-dev/skep/agent/reconcile/plan"
)

// Drift says how the kernel differs from what was made of it.
type Drift string

// The kinds of drift: a pin is gone, a link was severed, or another program
// runs under it.
const (
	Unpinned Drift = "unpinned"
	Detached Drift = "detached"
	Replaced Drift = "replaced"
)

// Observer counts what an Actor does.
type Observer interface {
	// Attached is told how long it took to attach a program to a hook of the
	// table, or to swap it in place, and what came of it.
	Attached(hook string, took time.Duration, err error)
	// Healed is told that something was put back that somebody else changed.
	Healed(what Drift)
}

// heal counts an action that puts back what somebody else changed. It fails with a
// *retry.ConflictError where the link was put back too often.
func (act *Actor) heal(a plan.Action) error {
	pin, drift := act.drifted(a)
	if drift == "" {
		return nil
	}
	times, err := act.Conflicts.Heal(pin, act.Now)
	if err == nil {
		act.Log.Warn("put back what somebody else changed", "action", a.String(), "times", times)
	}
	return err
}

// drifted names the link that an action puts back, and how it drifted; nothing
// where the action does what an intent changed.
func (act *Actor) drifted(a plan.Action) (string, Drift) {
	var (
		path      string
		unmanaged bool
	)
	if a.Verb == plan.SetChain {
		c, seen := act.Look.Chain(a.Device), act.Look.SeenChain(a.Device)
		if c == nil || c.Version == nil || len(a.Members) == 0 {
			return "", ""
		}
		path, unmanaged = act.Pins.ChainPath(a.Device), seen != nil && seen.Members == nil
	} else {
		l := act.Look.Link(a.UID, a.Attachment.Key())
		if l == nil || a.Verb == plan.Detach || act.Look.IsUnreadable(l.Path) {
			return "", ""
		}
		facts := act.Look.Seen(l.Path)
		path, unmanaged = l.Path, act.Look.RevisionOf(l, facts) == "" && !act.Look.Set.IsFormer(a.UID, facts.Program)
	}
	switch {
	case act.Look.Seen(path).Severed:
		return path, Detached
	case unmanaged:
		return path, Replaced
	}
	return "", ""
}
