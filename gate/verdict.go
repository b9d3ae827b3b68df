package gate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// Verdict is what the gate says of one request. Only package gate makes one
// that allows.
type Verdict struct {
	req      Request
	resolved image.Resolved
	object   *object
	evidence signing.Evidence
	facts    bytecode.Facts
	programs []v1alpha1.Program
	decision policies.Decision
	granted  policies.SharedTargets
	revision string
	allowed  bool
	// generation is that of the definition; see Generation.
	generation int64
	// activeRevision is the revision of signers and policies.
	activeRevision string
	// stale is when the registry was last asked, where it cannot be asked now.
	stale time.Time
	// unevaluated says what alone was evaluated, and why; nil where all was.
	unevaluated error
	// missing says that the registry has no such image; nil where it has.
	missing error
	// counted is where the evidence is, and sealedBefore where it was sealed with the running
	// version. unsought says that this was not looked for.
	counted      []whereabouts
	sealedBefore []intent.Artifact
	unsought     bool
	// outdated is Outdated.
	outdated bool
}

// Decide lets the policies evaluate. Only an error of the engine itself, or of a
// registry that had to be asked for the rest of the evidence, is an error; a
// denial is a Verdict.
func (e *Evaluator) Decide(ctx context.Context, i Inspected) (Verdict, error) {
	if i.programs == nil {
		return Verdict{}, fmt.Errorf("decide: %w", errSkipped)
	}
	id := i.req.Application.Identity()
	decision, err := e.decision(ctx, i)
	if err == nil && i.evidence.Partial && needsAllEvidence(decision, i.evidence) {
		if i, err = e.complete(ctx, i); err != nil {
			return Verdict{}, err
		}
		decision, err = e.decision(ctx, i)
	}
	outdated := err == nil && e.outdated(decision, i)
	if outdated {
		var news bool
		switch i, news, err = e.renewed(ctx, i); {
		case errors.Is(err, image.ErrNotAsked) && unread(decision, i) == nil:
			err = nil
		case err == nil:
			outdated = false
			if news {
				decision, err = e.decision(ctx, i)
			}
		}
	}
	if err == nil {
		err = unread(decision, i)
	}
	if err == nil && !decision.Known() {
		// What denies nothing but for want of time is no answer.
		err = ctx.Err()
	}
	if err != nil {
		return Verdict{}, fmt.Errorf("decide %s: %w", id, err)
	}
	generation, err := Generation(i.req.Application)
	if err != nil {
		return Verdict{}, err
	}
	decision.Warnings = slices.Concat(decision.Warnings, revokedWarnings(decision, i), pinnedWarnings(i), answerWarnings(i))
	v := Verdict{
		generation: generation, activeRevision: RevisionIn(id.Namespace, i.trust, i.policies),
		req: i.req, resolved: i.image, object: i.object, evidence: i.evidence, facts: i.facts,
		programs: i.programs, decision: decision, revision: i.policies.RevisionIn(id.Namespace), allowed: decision.Allowed(), outdated: outdated,
		granted: i.policies.Granted(id.Namespace),
		counted: i.counted(), sealedBefore: i.sealedEvidence(), unsought: len(i.collected.unsought(i.Resolved)) > 0,
	}
	if i.stale {
		v.stale = i.collected.At
	}
	return v, nil
}

// needsAllEvidence reports whether a decision on a part of the evidence is none: it
// denies, a policy reads what the rest may add to, or nobody who signed the
// part counts any more.
func needsAllEvidence(d policies.Decision, part signing.Evidence) bool {
	return !d.Allowed() || d.AllEvidence || len(part.Signatures) == 0
}

// unread is why a decision on evidence of which not all was read is none: what was not
// read may be what would allow. Anyone who may push can add to what there is, and move a tag.
func unread(d policies.Decision, i Inspected) error {
	if d.Allowed() {
		return nil
	}
	if i.evidence.Truncated == "" {
		missing := i.collected.unsettled(i.Resolved)
		if len(missing) == 0 || !hangsOnEvidence(d, i) {
			return nil
		}
		return fmt.Errorf("verify signatures of %s: manifest %s, by which the running version was allowed, was not read yet; Skep asks again: %w",
			i.image.Reference, missing[0].Manifest, image.ErrUnavailable)
	}
	return fmt.Errorf("verify signatures of %s: not all of them are read, and those that are do not allow it: %s: "+
		"remove what is not needed beside the image, or have it signed in a repository that only the signer may push to (spec.repository of the BpfSigner): %w",
		i.image.Reference, i.evidence.Truncated, ErrTruncated)
}

// ErrTruncated says that more signatures and attestations are about an image than are read.
var ErrTruncated = errors.New("the evidence is truncated")

// revokedWarnings say of what is denied which revoked signers signed it: a policy sees no
// signature of theirs.
func revokedWarnings(d policies.Decision, i Inspected) []policies.Reason {
	if d.Allowed() {
		return nil
	}
	var r denials
	revoked := i.trust.Revoked()
	for _, name := range i.evidence.Revoked {
		r.add("verify/revoked", "spec.bytecode.image", "have a signer who is not revoked sign the image; a new signature of the revoked key does not count",
			"signer %s signed it and is %s: that signature does not count", name, revoked[name])
	}
	return r.reasons
}

// decision asks the policies, or the memory of what they said.
func (e *Evaluator) decision(ctx context.Context, i Inspected) (policies.Decision, error) {
	input := i.Input()
	key, err := decisionKey(input, i.policies.RevisionIn(input.Application.Metadata.Namespace))
	if err != nil {
		return policies.Decision{}, err
	}
	if decision, known := e.known.decisions.Get(key); known {
		return decision, nil
	}
	input.Now = e.opts.Now()
	decision, err := i.policies.Decide(ctx, input)
	if err == nil && !decision.TimeDependent {
		e.known.decisions.Put(key, decision)
	}
	return decision, err
}

// decisionKey hashes all a decision rests on: the whole input but the clock,
// and the policies.
func decisionKey(input policies.Input, revision string) (string, error) {
	body, err := json.Marshal(input)
	if err != nil {
		return "", fmt.Errorf("hash policy input: %w", err)
	}
	sum := sha256.Sum256(body)
	return revision + "/" + hex.EncodeToString(sum[:]), nil
}

// deniedVerdict is a step's denial as a verdict, with what was learned.
func deniedVerdict(req Request, learned Verdict, refusal *Denial) Verdict {
	learned.req = req
	learned.decision = policies.Decision{Denied: refusal.Reasons}
	learned.allowed, learned.missing = false, refusal.missing
	return learned
}

// Application is what was evaluated.
func (v Verdict) Application() v1alpha1.Application { return v.req.Application }

// Allowed reports whether the application may be loaded.
func (v Verdict) Allowed() bool { return v.allowed }

// Revision identifies the signers and policies that the verdict rests on, as
// Evaluator.RevisionIn does; empty where it fell before they were asked.
func (v Verdict) Revision() string { return v.activeRevision }

// PolicyRevision identifies the policies alone, as a sealed intent records it.
func (v Verdict) PolicyRevision() string { return v.revision }

// Decision has the reasons and warnings.
func (v Verdict) Decision() policies.Decision { return v.decision }

// Image is what the reference resolved to; its Digest is empty where the
// verdict fell before that.
func (v Verdict) Image() image.Resolved { return v.resolved }

// Evidence is who signed the image.
func (v Verdict) Evidence() signing.Evidence { return v.evidence }

// Stale is when the registry was last asked who signed, where it is out of reach
// now; the zero time where it is not.
func (v Verdict) Stale() time.Time { return v.stale }

// asked reports whether the policies were: a step before them denied nothing, and the
// input was not too large.
func (v Verdict) asked() bool { return len(v.decision.Policies) > 0 }

// Invalid says what is wrong with the definition in itself, whatever image and policies
// are: reasons of the step Shape, also where only the section of a program names the hook.
// It is empty where Shape found nothing.
func (v Verdict) Invalid() string {
	if v.allowed || v.asked() {
		return ""
	}
	for _, r := range v.decision.Denied {
		if strings.HasPrefix(r.Rule, shapeRules) {
			return Sentence(r)
		}
	}
	return ""
}

// Unevaluated says what was evaluated of a definition that is denied whatever the rest
// turns out to be, and why no more; nil where all was.
func (v Verdict) Unevaluated() error { return v.unevaluated }

// Missing says that the registry has no such image; nil if it has, or was not asked.
func (v Verdict) Missing() error { return v.missing }

// Outdated reports whether it rests on signatures or attestations that the registry is to be
// asked about again, and was not: the context was one of registry.CacheOnly.
func (v Verdict) Outdated() bool { return v.outdated }

// Facts is what the bytecode does; empty where the verdict fell before that.
func (v Verdict) Facts() bytecode.Facts { return v.facts }
