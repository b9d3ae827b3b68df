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
