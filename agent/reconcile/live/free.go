package live

import (
	"io"
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

// unused is what was replaced or detached, with its programs.
type unused struct {
	what     string
	closer   io.Closer
	programs int
}

// Free closes what nothing runs any more as soon as its programs can be freed; see FreeUnused.
func (s *Set) Free(what string, c io.Closer, programs int) {
	s.unused = append(s.unused, unused{what, c, programs})
}

// FreeChain frees a version that no link runs. The program of a member alone is its revision's.
func (s *Set) FreeChain(what string, v *pins.ChainVersion) {
	switch {
	case v == nil:
	case v.Counters == nil:
		s.Free(what, v, 0)
	default:
		s.Free(what, v, 1)
	}
}

// FreeUnused closes what can be freed now, the oldest first.
func (s *Set) FreeUnused(now time.Time) {
	for len(s.unused) > 0 && s.Pace.allows(s.unused[0].programs, now) {
		s.Pace.freed += s.unused[0].programs
		s.freeOldest()
	}
}

// AwaitFreed waits until everything is closed that waits to be freed.
func (s *Set) AwaitFreed() {
	for len(s.unused) > 0 {
		s.Pace.Await(s.unused[0].programs)
		s.freeOldest()
	}
}

func (s *Set) freeOldest() {
	one := s.unused[0]
	s.unused = s.unused[1:]
	s.Release(one.what, one.closer)
}

// HasUnused reports whether something waits to be freed.
func (s *Set) HasUnused() bool { return len(s.unused) > 0 }
