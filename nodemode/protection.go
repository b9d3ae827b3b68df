package nodemode

import (
	"fmt"
	"slices"
	"time"

	"github.com/skep-dev/skep/lifecycle"
)

// protections are what waits for a human: a change of policies, a change of the
// source. Each is nil where it holds nothing.
type protections struct{ policies, source *UnloadProtection }

// unload is when an application was unloaded by a policy, and by which revision.
type unload struct {
	revision string
	at       time.Time
}

// unloadsCountFor is how long an unloaded application counts with those that the
// same revision wants unloaded later: answers of registries come one by one, and a
// mass denial that comes drop by drop is one.
const unloadsCountFor = time.Hour

// protect holds a change of policies that would unload much of what runs, until
// it is confirmed. It returns nil where there is nothing to hold.
func (h *Host) protect(all []observation) *UnloadProtection {
	b := &UnloadProtection{Revision: h.settings.evaluator.Revision(), Reason: "the policies or signers changed", Applications: []string{}}
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
	if len(b.Applications) == 0 || h.isConfirmed(b.Revision) || !lifecycle.NeedsConfirmation(running+earlier, len(b.Applications)+earlier) {
		return nil
	}
	return b
}

// weighFor is how long a change of policies waits until registries have said of
// all that runs whether it is denied too. After that, what is denied is unloaded
// although others may be denied later.
const weighFor = 5 * time.Second

// weighing is since when a revision of settings is active, by the machine's
// clock.
type weighing struct {
	revision string
	since    time.Time
}

// weighs reports whether the settings active are so new that the unload
// protection cannot know yet how much they deny. It never holds a revocation.
func (h *Host) weighs(all []observation) bool {
	if revision := h.settings.evaluator.Revision(); h.weighed.revision != revision {
		h.weighed = weighing{revision: revision, since: time.Now()}
		time.AfterFunc(weighFor, h.evaluations.Signal)
	}
	return time.Since(h.weighed.since) < weighFor && slices.ContainsFunc(all, func(s observation) bool { return s.Pending() })
}

// Confirm lets a change that unload protection holds go through and returns what was
// held. The revision is the one the status names; another is denied, since
// something changed since.
func (h *Host) Confirm(revision string) (UnloadProtection, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range []*UnloadProtection{h.status.Source.UnloadProtection, h.status.UnloadProtection} {
		if b != nil && b.Revision == revision {
			h.confirmed[revision] = true
			h.poke()
			return *b, nil
		}
	}
	return UnloadProtection{}, fmt.Errorf("confirm %s: unload protection does not hold that revision; see `skep status --state %s`", revision, h.opts.State)
}

// isConfirmed reports whether a human let a revision through since the start.
func (h *Host) isConfirmed(revision string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.confirmed[revision]
}
