package node

// IsIdle is what a sweep of Run asks before it spends a turn.
func (a *Agent) IsIdle() bool { return a.isIdle() }
