package lifecycle

import (
	"errors"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/text"
)

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

// Verified is the condition of that name. It names the signers, or says why each
// signature did not count. why is its message if nothing was evaluated.
func (o Observation) Verified(why string) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionVerified, Status: metav1.ConditionFalse, Reason: ReasonNoKnownSigner, Message: "no known signer signed the image",
	}
	if o.defined() && o.Err == nil && o.Verdict.Unevaluated() != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonEvaluationFailed, o.Verdict.Unevaluated().Error()
		return c
	}
	if !o.defined() || o.Err != nil {
		return o.unknown(c, why)
	}
	if missing := o.Verdict.Missing(); missing != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonImageNotFound, missing.Error()
		return c
	}
	evidence := o.Verdict.Evidence()
	if names := evidence.Signers(); len(names) > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonSigned, "signed by "+strings.Join(names, ", ")
		if at := o.Verdict.Stale(); !at.IsZero() {
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

// AuditMark stands in the message of Allowed before what policies in mode Audit would deny.
const AuditMark = "; in mode Audit, which denies nothing: "

// maxMessage is how many bytes the message of Allowed has at most: fewer than the 32 KiB that
// the API takes.
const maxMessage = 30 << 10

// Allowed is the condition of that name: the policies that allow, or every reason of the
// denial; and what policies in mode Audit would deny. why is its message if nothing was
// evaluated.
func (o Observation) Allowed(why string) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAllowed, Status: metav1.ConditionFalse, Reason: ReasonDenied}
	if !o.defined() || o.Err != nil {
		return o.unknown(c, why)
	}
	d := o.Verdict.Decision()
	if o.Verdict.Allowed() {
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonAllowed, "allowed by "+strings.Join(d.Policies, ", ")
	} else {
		c.Message = sentences(d.Denied)
		if cause := o.Verdict.Unevaluated(); cause != nil {
			c.Message += "; " + cause.Error()
		}
	}
	if len(d.Audited) > 0 {
		c.Message += AuditMark + sentences(d.Audited)
	}
	c.Message = text.Cut(c.Message, maxMessage)
	return c
}

// unknown is a condition whose evaluation has no result.
func (o Observation) unknown(c metav1.Condition, why string) metav1.Condition {
	c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonNotEvaluated, why
	switch {
	case errors.Is(o.Err, gate.ErrPending):
		c.Reason, c.Message = ReasonPending, o.Err.Error()
	case o.Err != nil:
		c.Reason, c.Message = ReasonEvaluationFailed, o.Err.Error()
	}
	return c
}

// sentences are reasons on one line.
func sentences(reasons []policies.Reason) string {
	lines := make([]string, 0, len(reasons))
	for _, r := range reasons {
		lines = append(lines, gate.Sentence(r))
	}
	return strings.Join(lines, "; ")
}
