package agent

import "github.com/skep-dev/skep/agent/plan"

// heal counts an action that puts back what somebody else changed. It fails with a
// *retry.ConflictError where the link was put back too often. Where nothing drifted, the
// drift is empty.
func (act *actor) heal(a plan.Action) (Drift, error) {
	pin, drift := act.drifted(a)
	if drift == "" {
		return "", nil
	}
	times, err := act.conflicts.Heal(pin, act.now)
	if err == nil {
		act.log.Warn("put back what somebody else changed", "action", a.String(), "times", times)
	}
	return drift, err
}

// drifted names the link that an action puts back, and how it drifted; nothing
// where the action does what an intent changed.
func (act *actor) drifted(a plan.Action) (string, Drift) {
	var (
		path      string
		unmanaged bool
	)
	if a.Verb == plan.SetChain {
		c, seen := act.look.Set.Chains[a.Ifindex], act.look.Chain(a.Ifindex)
		if c == nil || c.Version == nil || len(a.Members) == 0 {
			return "", ""
		}
		path, unmanaged = act.pins.ChainPath(a.Ifindex), seen != nil && seen.Members == nil
	} else {
		l := act.look.Set.Links[a.UID][a.Attachment.Key()]
		if l == nil || a.Verb == plan.Detach {
			return "", ""
		}
		path, unmanaged = l.Path, act.look.RevisionOf(l, act.look.Seen(l.Path)) == ""
	}
	switch {
	case act.look.Seen(path).Severed:
		return path, Detached
	case unmanaged:
		return path, Replaced
	}
	return "", ""
}
