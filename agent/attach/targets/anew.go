package targets

import "time"

// anew is how long one reconcile finds stale answers and reads stale namespaces anew yet, and whether it leaves any.
type anew struct {
	files, namespaces time.Duration
	// isHurried is Pods.IsHurried.
	isHurried func() bool
	// isLeft: something stale is found or read by the next reconcile.
	isLeft bool
}

// isOver reports whether there is no time left, and something waits for the next reconcile.
func (a *anew) isOver(left time.Duration) bool {
	return left <= 0 && a.isHurried != nil && a.isHurried()
}

// leave notes whether something stale is left to the next reconcile.
func (a *anew) leave(is bool) bool {
	a.isLeft = a.isLeft || is
	return is
}
