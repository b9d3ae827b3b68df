package policy

import (
	"cmp"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// How often policies of namespaces change what is active where nothing else is asked
// for, and how many changes act at once after quiet: who applies a folder of policies
// does not wait.
const (
	namespacedEvery  = 30 * time.Second
	namespacedAtOnce = 4
)

// editLimit bounds how often policies of namespaces change what is active, for all of them
// together. The zero value is ready.
type editLimit struct {
	once    sync.Once
	changes *rate.Limiter
}

// of is the limiter, whose rate is that of the first call.
func (l *editLimit) of(every time.Duration) *rate.Limiter {
	l.once.Do(func() {
		l.changes = rate.NewLimiter(rate.Every(cmp.Or(every, namespacedEvery)), namespacedAtOnce)
	})
	return l.changes
}

// wait is how long the next change has to wait; zero where it need not.
func (l *editLimit) wait(now time.Time, every time.Duration) time.Duration {
	next := l.of(every).ReserveN(now, 1)
	defer next.CancelAt(now)
	return next.DelayFrom(now)
}

// take counts a change.
func (l *editLimit) take(now time.Time, every time.Duration) { l.of(every).AllowN(now, 1) }
