package agent

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/plan"
)

// endRetry is how long at most what ends a member waits for another attempt to load its
// chain.
const endRetry = 2 * time.Second

// attempt is a load of a chain, or an action on one, which failed. It has a back-off of
// its own: a chain has many owners, and what else fails of one delays no other.
type attempt struct {
	err      error
	failures int
	// at is when it failed, and wait for how long it is not tried again.
	at   time.Time
	wait time.Duration
}

// triedLately returns the error of an attempt that is not to be repeated yet: before its
// back-off is over, and at most for a while.
func (p *pass) triedLately(key string, most time.Duration) error {
	p.planned[key] = true
	if last := p.attempts[key]; last != nil && p.now.Before(last.at.Add(min(last.wait, most))) {
		return last.err
	}
	return nil
}

// failedAgain remembers an attempt that failed.
func (p *pass) failedAgain(key string, err error) {
	last := p.attempts[key]
	if last == nil {
		last = &attempt{}
		p.attempts[key] = last
	}
	last.err, last.failures, last.at = err, last.failures+1, p.now
	last.wait = p.opts.BackOff.after(last.failures)
}

// noteChain remembers how an action on a chain went.
func (p *pass) noteChain(a plan.Action, err error) {
	if a.Verb != plan.SetChain || isPending(err) {
		return
	}
	if wait := new(driftConflictError); err == nil || errors.As(err, &wait) {
		// Who is contested says when it is tried again.
		delete(p.attempts, a.String())
		return
	}
	p.failedAgain(a.String(), err)
}

// endAttempts forgets the attempts that nobody plans any more. An action that waits for
// its load is not planned meanwhile.
func (p *pass) endAttempts() {
	maps.DeleteFunc(p.attempts, func(key string, last *attempt) bool {
		return !p.planned[key] && p.now.Sub(last.at) > last.wait+p.opts.BackOff.Most
	})
}

// patience is how long at most a chain is not loaded again that could not be loaded.
func (p *pass) patience(want, running []plan.Member) time.Duration {
	for _, m := range running {
		if isNew(m, want) && (slices.Contains(p.want.Gone, m.UID) || p.withdrawn(m.UID, m.Revision)) {
			return endRetry
		}
	}
	return p.opts.BackOff.longest()
}
