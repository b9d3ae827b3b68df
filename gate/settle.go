package gate

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/text"
)

// AnnotationRequestedAt is Flux's annotation: changing its value has a tag
// resolved anew.
const AnnotationRequestedAt = "reconcile.fluxcd.io/requestedAt"

// Generation names what a definition asks nodes for: it is equal for equal specs,
// but for suspend and rollout, and values of AnnotationRequestedAt, and positive.
// A tag is resolved once per generation.
func Generation(app v1alpha1.Application) (int64, error) {
	spec := *app.Body()
	spec.Suspend, spec.Rollout = false, nil
	body, err := json.Marshal(struct {
		Spec      *v1alpha1.BpfApplicationSpec
		Requested string
	}{&spec, app.GetAnnotations()[AnnotationRequestedAt]})
	if err != nil {
		return 0, fmt.Errorf("hash spec of %s: %w", app.Identity(), err)
	}
	sum := sha256.Sum256(body)
	return int64(binary.BigEndian.Uint64(sum[:8])>>1) | 1, nil
}

// Move is what a door does with one application.
type Move string

// The moves.
const (
	// MoveKeep leaves what runs as it is.
	MoveKeep Move = "keep"
	// MoveSeal hands agents a new intent.
	MoveSeal Move = "seal"
	// MoveUnload hands agents a tombstone.
	MoveUnload Move = "unload"
)

// Observation is one application as a door finds it: what is defined, what the
// gate says of it, and what agents hold.
type Observation struct {
	// Request is the definition as it was evaluated; its Application is nil where
	// there is none.
	Request Request
	// Verdict is what the gate said, Err why it could not tell.
	Verdict Verdict
	Err     error
	// Live is what agents hold; nil where they never held anything.
	Live *intent.Payload
	// Hidden tells that the definition may stand where nobody could read it, so
	// that its absence says nothing.
	Hidden bool
	// Undone tells that the definition was undone: what runs is the version
	// before it.
	Undone bool
	// Frozen tells that the definition is held back: what runs stays for now.
	Frozen bool
	// Running is what the gate says of what runs, whatever became of its
	// definition; the zero value where it was not asked or could not tell.
	Running RunningVerdict
}

// Runs reports whether agents hold more than a tombstone.
func (s Observation) Runs() bool { return s.Live != nil && !s.Live.Tombstone }

func (s Observation) defined() bool { return s.Request.Application != nil }

// allowed reports whether the definition may be loaded.
func (s Observation) allowed() bool { return s.defined() && s.Err == nil && s.Verdict.Allowed() }

// stays reports whether the definition's own verdict leaves nothing to ask about
// what runs: it is allowed, and takes its place.
func (s Observation) stays() bool {
	return s.allowed() && !s.Undone && !s.Frozen && !s.Request.Application.Body().Suspend
}

// Unloads reports whether a policy wants what runs gone: by the verdict of its own
// definition, or, where that says something else by now, by its own.
func (s Observation) Unloads() bool {
	return s.Runs() && (s.Running.overruled || s.deniesLive() && s.Verdict.Decision().Unload)
}

// deniesLive reports whether the definition's own verdict denies what runs.
func (s Observation) deniesLive() bool {
	if !s.defined() || s.Undone || s.Err != nil || s.Verdict.Allowed() {
		return false
	}
	generation, err := Generation(s.Request.Application)
	return err == nil && generation == s.Live.Generation
}

// UnloadsByCluster reports of what Unloads whether a policy of the cluster wants it gone,
// and not only those of its namespace.
func (s Observation) UnloadsByCluster() bool {
	return s.Running.overruled && s.Running.byCluster || s.Runs() && s.deniesLive() && s.Verdict.Decision().UnloadByCluster
}

// Pending reports whether it runs, and an evaluation is under way that may say
// that it is denied.
func (s Observation) Pending() bool {
	return s.Runs() && (s.Running.pending != nil || errors.Is(s.Err, ErrPending) && !s.Running.evaluated)
}

// Undecided reports whether policies that could not be evaluated, by their own fault, for
// want of time, or since a registry is away, may yet change what is decided of what runs.
func (s Observation) Undecided() bool {
	return s.Running.unknown || s.Running.partial || s.defined() && s.Err == nil && !s.Verdict.Decision().Known()
}

// UnloadedByPolicy is the reason that is sealed where unload protection counts what is
// unloaded.
const UnloadedByPolicy = "a policy that says running: Unload denies it"

// UnloadedAgain is the reason to seal where a tombstone is sealed over an older one of that
// reason: what went before does not go once more.
func UnloadedAgain(reason string) string {
	if reason == UnloadedByPolicy {
		return "a policy that says running: Unload denied it"
	}
	return reason
}

// Decide decides what to do with one application and why. revoked are the
// signers whose trust was taken away, or is from a time on; held by unload protection tells that so much is denied anew
// that a human has to confirm it.
func (s Observation) Decide(revoked signing.Revocations, protected bool) (Move, string) {
	if move, why := s.distrusted(revoked); move != "" {
		return move, why
	}
	switch {
	case s.Unloads() && protected:
		return MoveKeep, "unload protection holds it until the change is confirmed"
	case s.Unloads():
		return MoveUnload, UnloadedByPolicy
	case !s.defined() && s.Hidden:
		return MoveKeep, "its file cannot be read"
	case !s.defined() && s.Runs():
		return MoveUnload, "it is no longer defined in the source"
	case !s.defined():
		return MoveKeep, ""
	case s.Request.Application.Body().Suspend:
		return MoveKeep, "it is suspended"
	case s.Undone:
		return MoveKeep, "it was rolled back to the version before"
	case s.Err != nil:
		return MoveKeep, "it could not be evaluated; what runs is kept"
	case s.allowed() && s.Live != nil && s.Verdict.Same(*s.Live):
		return MoveKeep, ""
	case s.allowed():
		return MoveSeal, ""
	case !s.Runs():
		return MoveKeep, ""
	}
	return MoveKeep, "it is denied; what runs is kept and frozen"
}

// distrusted decides about what runs where a signer in its sealed intent is revoked:
// it is unloaded where it is denied now, by whatever evidence there is. The sealed
// signers are the record: who may push to the registry adds none to it and takes
// none away. The move is empty where there is nothing to decide.
func (s Observation) distrusted(revoked signing.Revocations) (Move, string) {
	if !s.Runs() || s.stays() {
		return "", ""
	}
	names := revokedOf(s.Live, revoked)
	switch {
	case len(names) == 0 || s.Running.stands:
		return "", ""
	case s.Running.pending != nil:
		return MoveKeep, s.Running.pending.Error()
	case LostItsSigners(s.Live, revoked):
		return MoveUnload, UnloadedByRevocation(s.Live, revoked)
	case s.Running.unknown:
		return MoveKeep, "a signer it was admitted by is revoked (" + describeRevoked(names, revoked) +
			"), and the policies could not be evaluated to the end; what runs is kept until they are"
	case s.Running.evaluated || s.Running.deniedByRecord:
		return MoveUnload, UnloadedByRevocation(s.Live, revoked)
	}
	return "", ""
}

// UnloadedByRevocation is the reason that is sealed where a version is unloaded that
// revoked signers admitted. It names them, with the time from which on each is revoked.
func UnloadedByRevocation(version *intent.Payload, revoked signing.Revocations) string {
	names := describeRevoked(revokedOf(version, revoked), revoked)
	if LostItsSigners(version, revoked) {
		return "every signer it was admitted by is revoked: " + names
	}
	return "it is denied, and a signer it was admitted by is revoked: " + names
}

// describeRevoked names signers, with the time from which on each is revoked.
func describeRevoked(names []string, revoked signing.Revocations) string {
	described := make([]string, len(names))
	for i, name := range names {
		described[i] = name
		if at := revoked[name].After; !at.IsZero() {
			described[i] += ", since " + at.UTC().Format(time.RFC3339)
		}
	}
	return strings.Join(described, "; ")
}

// LostASigner reports whether a signer who admitted a version is revoked now.
func LostASigner(version *intent.Payload, revoked signing.Revocations) bool {
	return len(revokedOf(version, revoked)) > 0
}

// LostItsSigners reports whether signers admitted a version and all of them are
// revoked now.
func LostItsSigners(version *intent.Payload, revoked signing.Revocations) bool {
	return len(version.Signers) > 0 && len(revokedOf(version, revoked)) == len(version.Signers)
}

// The reasons of the conditions Verified and Allowed.
const (
	ReasonSigned        = "Signed"
	ReasonNoKnownSigner = "NoKnownSigner"
	ReasonImageNotFound = "ImageNotFound"
	ReasonAllowed       = "Allowed"
	ReasonDenied        = "Denied"
	// ReasonNotEvaluated: nothing was evaluated, such as a definition that cannot be read.
	ReasonNotEvaluated = "NotEvaluated"
	// ReasonEvaluationFailed: the evaluation has no result, such as with a registry away.
	ReasonEvaluationFailed = "EvaluationFailed"
	// ReasonPending: the evaluation has no result yet.
	ReasonPending = "Pending"
)

// Verified is the condition of that name: it names the signers, or says of each
// signature that did not count why it did not. why is told where nothing was
// evaluated.
func (s Observation) Verified(why string) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionVerified, Status: metav1.ConditionFalse, Reason: ReasonNoKnownSigner, Message: "no known signer signed the image"}
	if s.defined() && s.Err == nil && s.Verdict.unevaluated != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonEvaluationFailed, s.Verdict.unevaluated.Error()
		return c
	}
	if !s.defined() || s.Err != nil {
		return s.unknown(c, why)
	}
	if missing := s.Verdict.missing; missing != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonImageNotFound, missing.Error()
		return c
	}
	evidence := s.Verdict.Evidence()
	if names := evidence.Signers(); len(names) > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonSigned, "signed by "+strings.Join(names, ", ")
		if at := s.Verdict.Stale(); !at.IsZero() {
			c.Message += ", as the registry said at " + at.UTC().Format(time.RFC3339) + "; it is out of reach since"
		}
		return c
	}
	if names := evidence.Attesters(); len(names) > 0 {
		c.Message += "; attestations alone do not count: an admin sets countAttestations on BpfSigner " + strings.Join(names, ", ") + " to have them count"
	}
	for _, r := range evidence.Rejected {
		c.Message += "; " + strings.TrimPrefix(r.Signer+": ", ": ") + r.Reason
	}
	return c
}

// AuditMark is what the message of Allowed has before what policies in mode Audit would deny.
const AuditMark = "; in mode Audit, which denies nothing: "

// maxMessage is how many bytes the message of Allowed has at most: fewer than the 32 KiB that
// the API takes.
const maxMessage = 30 << 10

// Allowed is the condition of that name: which policies allow, or every reason
// against it; and what policies in Audit mode would refuse.
func (s Observation) Allowed(why string) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAllowed, Status: metav1.ConditionFalse, Reason: ReasonDenied}
	if !s.defined() || s.Err != nil {
		return s.unknown(c, why)
	}
	d := s.Verdict.Decision()
	if s.Verdict.Allowed() {
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonAllowed, "allowed by "+strings.Join(d.Policies, ", ")
	} else {
		c.Message = sentences(d.Denied)
		if cause := s.Verdict.unevaluated; cause != nil {
			c.Message += "; " + cause.Error()
		}
	}
	if len(d.Audited) > 0 {
		c.Message += AuditMark + sentences(d.Audited)
	}
	c.Message = text.Cut(c.Message, maxMessage)
	return c
}

// unknown is a condition of which the gate could not tell.
func (s Observation) unknown(c metav1.Condition, why string) metav1.Condition {
	c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonNotEvaluated, why
	switch {
	case errors.Is(s.Err, ErrPending):
		c.Reason, c.Message = ReasonPending, s.Err.Error()
	case s.Err != nil:
		c.Reason, c.Message = ReasonEvaluationFailed, s.Err.Error()
	}
	return c
}
