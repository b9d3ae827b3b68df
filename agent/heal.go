package agent

import "github.com/skep-dev/skep/agent/plan"

// heal counts an action that puts back what somebody else changed. It fails with a
// *retry.ConflictError where the link was put back too often. Where nothing drifted, the
// drift is empty.
func (rec *reconcile) heal(a plan.Action) (Drift, error) {
	pin, drift := rec.drifted(a)
	if drift == "" {
		return "", nil
	}
	times, err := rec.conflicts.Heal(pin, rec.now)
	if err == nil {
		rec.opts.Log.Warn("put back what somebody else changed", "action", a.String(), "times", times)
	}
	return drift, err
}

// drifted names the link that an action puts back, and how it drifted; nothing
// where the action does what an intent changed.
func (rec *reconcile) drifted(a plan.Action) (string, Drift) {
	var (
		path      string
		unmanaged bool
	)
	if a.Verb == plan.SetChain {
		c, seen := rec.live.Chains[a.Ifindex], rec.look.Chain(a.Ifindex)
		if c == nil || c.Version == nil || len(a.Members) == 0 {
			return "", ""
		}
		path, unmanaged = rec.pins.ChainPath(a.Ifindex), seen != nil && seen.Members == nil
	} else {
		l := rec.live.Links[a.UID][a.Attachment.Key()]
		if l == nil || a.Verb == plan.Detach {
			return "", ""
		}
		path, unmanaged = l.Path, rec.look.RevisionOf(l, rec.look.Seen(l.Path)) == ""
	}
	switch {
	case rec.look.Seen(path).Severed:
		return path, Detached
	case unmanaged:
		return path, Replaced
	}
	return "", ""
}
