package host

import (
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
)

// move is what a pass does with one application.
type move string

const (
	// keep leaves what runs as it is.
	keep move = "keep"
	// seal hands the agent a new intent.
	seal move = "seal"
	// bury hands the agent a tombstone.
	bury move = "bury"
)

// standing is one application as a pass finds it.
type standing struct {
	id v1alpha1.Identity
	// live is what the agent holds; nil where it never held anything.
	live *intent.Payload
	// judged is nil where the source does not define the application.
	judged *judgement
	// hidden tells that the application may stand in a file that could not be
	// read, so that its absence says nothing.
	hidden bool
	// held is what the gate says of what runs, whatever became of its
	// definition; the zero value where it was not asked or could not tell.
	held held
}

// held is what a verdict about what runs comes to.
type held struct {
	// stands tells that it would be admitted anew.
	stands bool
	// overruled tells that the policies would have it unloaded.
	overruled bool
	// orphaned tells that it is refused, and only because a signer was revoked.
	orphaned bool
}

// stays tells whether the definition's own verdict leaves nothing to ask about
// what runs: it is allowed, and takes its place.
func (s standing) stays() bool { return s.allowed() && !s.judged.def.app.Body().Suspend }

// allowed tells whether the definition may be loaded.
func (s standing) allowed() bool {
	return s.judged != nil && s.judged.err == nil && s.judged.verdict.Allowed()
}

// unloads tells whether a policy wants what runs gone.
func (s standing) unloads() bool {
	j := s.judged
	return s.runs() && (s.held.overruled || j != nil && j.err == nil && !j.verdict.Allowed() && j.verdict.Decision().Unload)
}

// judgement is what the gate said of a definition.
type judgement struct {
	def     definition
	verdict gate.Verdict
	// err is why it could not be told.
	err error
}

// runs tells whether the agent holds more than a tombstone.
func (s standing) runs() bool { return s.live != nil && !s.live.Tombstone }

// settle decides what to do with one application and why. revoked are the
// signers whose trust was taken away; braked tells that so much is denied anew
// that a human has to confirm it.
func settle(s standing, revoked []string, braked bool) (move, string) {
	j := s.judged
	allowed := s.allowed()
	switch {
	case s.runs() && !s.stays() && s.held.orphaned:
		return bury, "a signer it cannot do without is revoked"
	case s.runs() && !s.stays() && !s.held.stands && lostItsSigners(s, revoked):
		return bury, "every signer it was admitted by is revoked"
	case s.unloads() && braked:
		return keep, "the brake on mass denial holds it; confirm with skep confirm"
	case s.unloads():
		return bury, "a policy that says running: Unload denies it"
	case j == nil && s.hidden:
		return keep, "its file cannot be read"
	case j == nil && s.runs():
		return bury, "it is no longer defined in the source"
	case j == nil:
		return keep, ""
	case j.def.app.Body().Suspend:
		return keep, "it is suspended"
	case j.err != nil:
		return keep, "it could not be judged; what runs is kept"
	case allowed && s.live != nil && j.verdict.Same(*s.live):
		return keep, ""
	case allowed:
		return seal, ""
	}
	return keep, "it is denied; what runs is kept and frozen"
}

// lostItsSigners tells whether signers admitted what runs and all of them are
// revoked now.
func lostItsSigners(s standing, revoked []string) bool {
	for _, name := range s.live.Signers {
		if !slices.Contains(revoked, name) {
			return false
		}
	}
	return len(s.live.Signers) > 0
}

// unloadsAnew tells whether a definition that runs unchanged would be unloaded
// now: the change was in the policies.
func unloadsAnew(s standing) bool {
	return s.unloads() && (s.held.overruled || s.judged.def.app.GetGeneration() == s.live.Generation)
}
