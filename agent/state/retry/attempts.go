// Package retry says when something that failed is tried again. It remembers failures and
// times, and tries nothing itself.
package retry

import (
	"maps"
	"math/rand/v2"
	"time"
)

// BackOff is how long to wait after failures in a row: First, doubled each
// time, at most Most, each with up to a quarter of jitter.
type BackOff struct{ First, Most time.Duration }

// Longest is how long one wait may take, its jitter included.
func (b BackOff) Longest() time.Duration { return b.Most + b.Most/4 }

// After is how long to wait after so many failures in a row.
func (b BackOff) After(failures int) time.Duration {
	wait := b.First
	for range failures - 1 {
		if wait *= 2; wait >= b.Most {
			wait = b.Most
			break
		}
	}
	return wait + time.Duration(rand.Float64()*float64(wait)/4) //nolint:gosec // jitter guards no secret
}

// Attempts are loads of chains and actions on chains that failed, by key. Each has a back-off
// of its own: a chain has many owners, and no other failure of an owner delays it. The
// caller serializes all calls.
type Attempts struct {
	backOff BackOff
	byKey   map[string]*attempt
	// planned are those of byKey that were asked for since the last Sweep.
	planned map[string]bool
}

// attempt is what failed last under one key.
type attempt struct {
	err      error
	failures int
	// at is when it failed, and wait for how long it is not tried again.
	at   time.Time
	wait time.Duration
}

// NewAttempts returns Attempts that wait as the back-off says.
func NewAttempts(b BackOff) *Attempts {
	return &Attempts{backOff: b, byKey: map[string]*attempt{}, planned: map[string]bool{}}
}

// Last returns the error of an attempt that is not to be repeated yet: before its
// back-off is over, and at most for a while. The error is nil where it may be repeated.
func (a *Attempts) Last(key string, now time.Time, most time.Duration) error {
	last := a.byKey[key]
	if last == nil {
		return nil
	}
	a.planned[key] = true
	if now.Before(last.at.Add(min(last.wait, most))) {
		return last.err
	}
	return nil
}

// Failed remembers an attempt that failed.
func (a *Attempts) Failed(key string, now time.Time, err error) {
	last := a.byKey[key]
	if last == nil {
		last = &attempt{}
		a.byKey[key] = last
	}
	last.err, last.failures, last.at = err, last.failures+1, now
	last.wait = a.backOff.After(last.failures)
}

// Forget forgets the failures under a key.
func (a *Attempts) Forget(key string) { delete(a.byKey, key) }

// Sweep forgets the attempts that are not planned any more. An action that waits for its load
// is not planned meanwhile.
func (a *Attempts) Sweep(now time.Time) {
	maps.DeleteFunc(a.byKey, func(key string, last *attempt) bool {
		return !a.planned[key] && now.Sub(last.at) > last.wait+a.backOff.Most
	})
	clear(a.planned)
}
