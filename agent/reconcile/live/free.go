package live

import (
	"io"
	"log/slog"
	"time"

	"github.com/skep-dev/skep/agent/state/pins"
)

// mostFreed is how many programs are freed in a second. The kernel frees each in a work item of its own, under one
// lock. Linux 6.18 was seen to hang where 1,024 items, as many as it runs at once, waited for the lock, and its
// holder for another item.
const mostFreed = 256

// Pace is how many programs are freed in a second, by all callers together. To detach one is not paced.
type Pace struct {
	// Most programs are freed in a second, or as many as are freed together.
	Most int
	// Sleep is how Await waits; tests look meanwhile.
	Sleep func(time.Duration)
	freed int
	since time.Time
}

// NewPace returns the pace of an agent, or of a process that frees programs while none runs.
func NewPace() Pace { return Pace{Most: mostFreed, Sleep: func(d time.Duration) { <-time.After(d) }} }

// allows reports whether so many programs can be freed now.
func (p *Pace) allows(programs int, now time.Time) bool {
	if now.Before(p.since) || now.Sub(p.since) >= time.Second {
		p.freed, p.since = 0, now
	}
	return p.freed == 0 || p.freed+programs <= p.Most
}

// Await waits until so many programs can be freed, and counts them.
func (p *Pace) Await(programs int) {
	for now := time.Now(); !p.allows(programs, now); now = time.Now() {
		p.Sleep(p.since.Add(time.Second).Sub(now))
	}
	p.freed += programs
}

// nextGrace is how long others wait for a revision that had to wait, and that is not dropped any more.
const nextGrace = 5 * time.Second

// Unused is what nothing runs any more: what waits to be freed, and the revisions that wait to be dropped.
type Unused struct {
	// Pace is that at which programs are freed.
	Pace Pace

	log *slog.Logger
	// waiting is what waits to be freed, the oldest first.
	waiting []unused
	// next is the revision, by UID and name, that is dropped before others since it had to wait, from nextSince on.
	next      [2]string
	nextSince time.Time
}

// unused is what was replaced or detached, with its programs.
type unused struct {
	what     string
	closer   io.Closer
	programs int
}

// Put closes what nothing runs any more as soon as its programs can be freed; see Free.
func (u *Unused) Put(what string, c io.Closer, programs int) {
	u.waiting = append(u.waiting, unused{what, c, programs})
}

// PutChain is Put for a version that no link runs. The program of a member alone is its revision's.
func (u *Unused) PutChain(what string, v *pins.ChainVersion) {
	switch {
	case v == nil:
	case v.Counters == nil:
		u.Put(what, v, 0)
	default:
		u.Put(what, v, 1)
	}
}

// Free closes what can be freed now, the oldest first.
func (u *Unused) Free(now time.Time) {
	for len(u.waiting) > 0 && u.Pace.allows(u.waiting[0].programs, now) {
		u.Pace.freed += u.waiting[0].programs
		u.freeOldest()
	}
}

// AwaitFreed waits until everything is closed that waits to be freed.
func (u *Unused) AwaitFreed() {
	for len(u.waiting) > 0 {
		u.Pace.Await(u.waiting[0].programs)
		u.freeOldest()
	}
}

func (u *Unused) freeOldest() {
	one := u.waiting[0]
	u.waiting = u.waiting[1:]
	release(u.log, one.what, one.closer)
}

// IsEmpty reports whether nothing waits to be freed.
func (u *Unused) IsEmpty() bool { return len(u.waiting) == 0 }

// mayDrop reports whether a revision with so many programs can be dropped now. The first that cannot is before all others in the
// next second.
func (u *Unused) mayDrop(uid, name string, programs int, now time.Time) bool {
	this := [2]string{uid, name}
	isNext := u.next != [2]string{} && now.Sub(u.nextSince) < nextGrace
	switch {
	case isNext && u.next != this:
		return false
	case u.Pace.allows(programs, now):
		u.next = [2]string{}
		return true
	case !isNext:
		u.next, u.nextSince = this, now
	}
	return false
}

// release closes what is not needed any more, and logs where that fails.
func release(log *slog.Logger, what string, c io.Closer) {
	if err := c.Close(); err != nil {
		log.Error("let go", "what", what, "error", err)
	}
}
