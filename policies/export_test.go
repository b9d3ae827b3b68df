package policies

import "time"

// Ended is how many workers of an Engine were ended by what they worked on.
func Ended(e *Engine) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dropped
}

// Keep has the workers of an Engine keep no more than so much memory in compiled
// policies.
func Keep(e *Engine, bytes int64) { e.kept = bytes }

// Wait has an Engine wait so long for a policy to compile, however busy the machine
// is.
func Wait(e *Engine, patience time.Duration) { e.patience = patience }

// Free reports whether so many places to evaluate are free: for policies of the cluster,
// or for those of namespaces.
func Free(e *Engine, own bool, places int64) bool {
	all := e.evaluators(own, false).places
	if all.TryAcquire(places) {
		all.Release(places)
		return true
	}
	return false
}

// Penalties is how many policies exceeded a limit and are not tried yet.
func Penalties(e *Engine) int {
	e.penalties.mu.Lock()
	defer e.penalties.mu.Unlock()
	return len(e.penalties.of)
}
