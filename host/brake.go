package host

import (
	"fmt"
	"slices"
	"time"

	"github.com/skep-dev/skep/gate"
)

// brakes are what waits for a human: a change of policies, a change of the
// source. Each is nil where it holds nothing.
type brakes struct{ policies, source *Brake }

// unload is when an application was unloaded by a policy, and by which revision.
type unload struct {
	revision string
	at       time.Time
}

// unloadsCountFor is how long an unloaded application counts with those that the
// same revision wants unloaded later: answers of registries come one by one, and a
// mass denial that comes drop by drop is one.
const unloadsCountFor = time.Hour

// brake holds a change of policies that would unload much of what runs, until
// it is confirmed. It returns nil where there is nothing to hold.
func (h *Host) brake(all []standing) *Brake {
	b := &Brake{Revision: h.settings.judge.Revision(), Reason: "the policies or signers changed", Applications: []string{}}
	running, earlier := 0, 0
	for _, s := range all {
		if s.Runs() {
			running++
			delete(h.unloaded, uidOf(s.id))
		}
		if s.Unloads() {
			b.Applications = append(b.Applications, s.id.String())
		}
	}
	for uid, u := range h.unloaded {
		if u.revision != b.Revision || h.opts.Now().Sub(u.at) >= unloadsCountFor {
			delete(h.unloaded, uid)
			continue
		}
		earlier++
	}
	if len(b.Applications) == 0 || h.isConfirmed(b.Revision) || !gate.Brake(running+earlier, len(b.Applications)+earlier) {
		return nil
	}
	return b
}

// weighFor is how long a change of policies waits until registries have said of
// all that runs whether it is denied too. After that, what is denied is unloaded
// although others may be denied later.
const weighFor = 5 * time.Second

// weighing is since when a revision of settings is in force, by the machine's
// clock.
type weighing struct {
	revision string
	since    time.Time
}

// weighs reports whether the settings in force are so new that the unload
// protection cannot know yet how much they deny. It never holds a revocation.
func (h *Host) weighs(all []standing) bool {
	if revision := h.settings.judge.Revision(); h.weighed.revision != revision {
		h.weighed = weighing{revision: revision, since: time.Now()}
		time.AfterFunc(weighFor, h.evaluations.signal)
	}
	return time.Since(h.weighed.since) < weighFor && slices.ContainsFunc(all, func(s standing) bool { return s.Pending() })
}

// Confirm lets a change that the brake holds go through and returns what was
// held. The revision is the one the status names; another is refused, since
// something changed since.
func (h *Host) Confirm(revision string) (Brake, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range []*Brake{h.status.Source.Brake, h.status.Brake} {
		if b != nil && b.Revision == revision {
			h.confirmed[revision] = true
			h.poke()
			return *b, nil
		}
	}
	return Brake{}, fmt.Errorf("confirm %s: the brake does not hold that revision; see skep status", revision)
}

// isConfirmed tells whether a human let a revision through since the start.
func (h *Host) isConfirmed(revision string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.confirmed[revision]
}
