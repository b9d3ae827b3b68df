package gate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	// outdated is Outdated.
	outdated bool
}

// Decide lets the policies evaluate. Only an error of the engine itself, or of a
// registry that had to be asked for the rest of the evidence, is an error; a
// denial is a Verdict.
func (j *Evaluator) Decide(ctx context.Context, i Inspected) (Verdict, error) {
	if i.programs == nil {
		return Verdict{}, fmt.Errorf("decide: %w", errSkipped)
	}
	id := i.req.Application.Identity()
	decision, err := j.decision(ctx, i)
	if err == nil && i.evidence.Partial && needsAllEvidence(decision, i.evidence) {
		if i, err = j.complete(ctx, i); err != nil {
			return Verdict{}, err
		}
		decision, err = j.decision(ctx, i)
	}
	outdated := err == nil && j.outdated(decision, i)
	if outdated {
		var news bool
		switch i, news, err = j.renewed(ctx, i); {
		case errors.Is(err, image.ErrNotAsked):
			err = nil
		case err == nil:
			outdated = false
			if news {
				decision, err = j.decision(ctx, i)
			}
		}
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
	decision.Warnings = slices.Concat(decision.Warnings, revokedWarnings(decision, i))
	v := Verdict{
		generation: generation, activeRevision: RevisionIn(id.Namespace, i.trust, i.policies),
		req: i.req, resolved: i.image, object: i.object, evidence: i.evidence, facts: i.facts,
		programs: i.programs, decision: decision, revision: i.policies.RevisionIn(id.Namespace), allowed: decision.Allowed(), outdated: outdated,
	}
	if i.stale {
		v.stale = i.collected.At
	}
	return v, nil
}

// needsAllEvidence reports whether a decision on a part of the evidence is none: it
// refuses, a policy reads what the rest may add to, or nobody who signed the
// part counts any more.
func needsAllEvidence(d policies.Decision, part signing.Evidence) bool {
	return !d.Allowed() || d.AllEvidence || len(part.Signatures) == 0
}

// revokedWarnings say of what is denied which revoked signers signed it: a policy sees no
// signature of theirs.
func revokedWarnings(d policies.Decision, i Inspected) []policies.Reason {
	if d.Allowed() {
		return nil
	}
	var r refusals
	revoked := i.trust.Revoked()
	for _, name := range i.evidence.RevokedSigners() {
		r.add("verify/revoked", "spec.bytecode.image", "have a signer who is not revoked sign the image; a new signature of the revoked key does not count",
			"signer %s signed it and is %s: that signature does not count", name, revoked[name])
	}
	return r.reasons
}

// decision asks the policies, or the memory of what they said.
func (j *Evaluator) decision(ctx context.Context, i Inspected) (policies.Decision, error) {
	input := i.Input()
	key, err := decisionKey(input, i.policies.RevisionIn(input.Application.Metadata.Namespace))
	if err != nil {
		return policies.Decision{}, err
	}
	if decision, known := j.known.decisions.get(key); known {
		return decision, nil
	}
	input.Now = j.opts.Now()
	decision, err := i.policies.Decide(ctx, input)
	if err == nil && !decision.TimeDependent {
		j.known.decisions.put(key, decision)
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

// Input is the document Rego sees, but for the parameters and the clock, which
// the engine sets.
func (i Inspected) Input() policies.Input {
	input := i.input(i.programs)
	input.Image = policies.Image{
		Registry: i.image.Registry, Repository: i.image.Repository, Tag: i.image.Tag, Digest: i.image.Digest,
		Size: i.object.ObjectSize, Labels: i.object.Labels,
	}
	input.Signatures, input.Attestations, input.Bytecode = i.evidence.Signatures, i.evidence.Attestations, i.facts
	return input
}

// input is the part of the document that the definition says, with its programs as
// Inspect makes them.
func (s Shaped) input(programs []v1alpha1.Program) policies.Input {
	app, spec := s.req.Application, *s.req.Application.Body().DeepCopy()
	id := app.Identity()
	spec.Programs = programs
	ns := s.req.Namespace
	ns.Name = id.Namespace
	return policies.Input{
		Version: policies.InputVersion,
		Application: policies.Application{
			Kind: id.Kind,
			Metadata: policies.Metadata{
				Name: id.Name, Namespace: id.Namespace, Labels: app.GetLabels(), Annotations: annotations(app),
			},
			Spec: spec,
		},
		Requester: s.req.Requester,
		Namespace: ns,
	}
}

// AnnotationLastApplied is kubectl's copy of a definition as it was applied last.
const AnnotationLastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// annotations are those that policies see: not kubectl's copy of the whole
// definition, which controllers do not keep in memory.
func annotations(app v1alpha1.Application) map[string]string {
	all := app.GetAnnotations()
	if _, copied := all[AnnotationLastApplied]; !copied {
		return all
	}
	all = maps.Clone(all)
	delete(all, AnnotationLastApplied)
	return all
}

// refusedVerdict is a step's refusal as a verdict, with what was learned.
func refusedVerdict(req Request, learned Verdict, refusal *Refusal) Verdict {
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

// Unevaluated says what was evaluated of a definition that is denied whatever the rest
// turns out to be, and why no more; nil where all was.
func (v Verdict) Unevaluated() error { return v.unevaluated }

// Outdated reports whether it denies for signatures or attestations that the registry is
// to be asked about again, and was not: the context was one of image.CacheOnly.
func (v Verdict) Outdated() bool { return v.outdated }

// Facts is what the bytecode does; empty where the verdict fell before that.
func (v Verdict) Facts() bytecode.Facts { return v.facts }

// Stamp is what a sealed intent carries beside the verdict.
type Stamp struct {
	// UID is that of the application; serials count per UID.
	UID string
	// Serial is max(last + 1, unix milliseconds).
	Serial int64
	// Created is when the application was created, in unix milliseconds, by a clock
	// that no author sets.
	Created int64
	// Source says where the definition stands; may be empty.
	Source string
	// Version is the serial under which the version was first sealed; 0 where
	// that is Serial.
	Version int64
	// Rollout is how far the version is to come; nil means to every node.
	Rollout *intent.Rollout
	// Previous is the version before, nil where there is none that may run, and
	// Withdrawn those that go on where they run.
	Previous  *intent.Payload
	Withdrawn []intent.Payload
	// Undone is the generation of the definition that the verdict's version
	// takes the place of; 0 where it is the definition's own.
	Undone int64
}

// Seal makes the intent agents act on. It is an error unless the verdict
// allows.
func (v Verdict) Seal(s *intent.Sealer, stamp Stamp) (intent.Envelope, error) {
	if !v.allowed {
		return nil, errors.New("seal verdict: it does not allow")
	}
	return s.Seal(v.payload(stamp))
}

// Same reports whether sealing the verdict would say what the payload already
// says, serial and rollout apart.
func (v Verdict) Same(p intent.Payload) bool {
	if !v.allowed {
		return false
	}
	mine := v.payload(Stamp{UID: p.UID, Serial: p.Serial, Created: p.Created, Source: p.Source, Version: p.Version})
	mine.Format, mine.PolicyRevision = p.Format, p.PolicyRevision
	a, errA := json.Marshal(mine)
	b, errB := json.Marshal(p.Alone())
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// Version is what the verdict asks of a node, if it allows; its application has
// no UID there.
func (v Verdict) Version() intent.Payload {
	if !v.allowed {
		return intent.Payload{}
	}
	return v.payload(Stamp{})
}

// SameVersion reports whether the verdict asks the same of a node as the payload.
func (v Verdict) SameVersion(p intent.Payload) bool {
	mine := v.Version()
	return v.allowed && mine.SameVersion(&p)
}

func (v Verdict) payload(stamp Stamp) intent.Payload {
	spec := v.req.Application.Body()
	return intent.Payload{
		Application:    v.req.Application.Identity(),
		UID:            stamp.UID,
		Serial:         stamp.Serial,
		Created:        stamp.Created,
		Generation:     v.generation,
		Source:         stamp.Source,
		Image:          spec.Bytecode.Image,
		ImageDigest:    v.resolved.Digest,
		ObjectDigest:   v.object.ObjectDigest,
		NodeSelector:   spec.NodeSelector,
		Variables:      spec.Variables,
		Maps:           spec.Maps,
		Programs:       v.programs,
		Signers:        v.evidence.Signers(),
		SignedAt:       signedAt(v.evidence),
		PolicyRevision: v.revision,
		Version:        stamp.Version,
		Rollout:        stamp.Rollout,
		Previous:       stamp.Previous,
		Withdrawn:      stamp.Withdrawn,
		Undone:         stamp.Undone,
	}
}

// signedAt are the trusted times of who signed, in unix seconds; nil where there are
// none.
func signedAt(e signing.Evidence) map[string]int64 {
	var all map[string]int64
	for name, at := range e.SignedAt() {
		if at.IsZero() {
			continue
		}
		if all == nil {
			all = map[string]int64{}
		}
		all[name] = at.Unix()
	}
	return all
}

// SealTombstone seals a tombstone: the application is to be unloaded for the reason.
func SealTombstone(s *intent.Sealer, id v1alpha1.Identity, stamp Stamp, reason string) (intent.Envelope, error) {
	return s.Seal(intent.Payload{
		Application: id, UID: stamp.UID, Serial: stamp.Serial, Source: stamp.Source, Tombstone: true, Reason: reason, Undone: stamp.Undone,
	})
}

// Reseal seals an opened intent as it is with another key, serial and all: it is
// the same intent still.
func Reseal(s *intent.Sealer, o intent.Opened) (intent.Envelope, error) {
	if o.Held() {
		return nil, errors.New("seal intent anew: it is one node's view of it")
	}
	return s.Seal(o.Payload())
}

// WithdrawVersions seals what agents hold under a new serial without those of the versions
// beside it that may run no more. It needs no verdict: it takes away, and adds
// nothing.
func WithdrawVersions(s *intent.Sealer, live intent.Payload, serial int64, gone []*intent.Payload) (intent.Envelope, error) {
	live.Version, live.Serial = live.VersionSerial(), serial
	if slices.Contains(gone, live.Previous) {
		live.Previous = nil
	}
	withdrawn := live.Withdrawn
	live.Withdrawn = nil
	for i := range withdrawn {
		if !slices.Contains(gone, &withdrawn[i]) {
			live.Withdrawn = append(live.Withdrawn, withdrawn[i])
		}
	}
	return s.Seal(live)
}

// WithdrawRollout seals what agents hold under a new serial so that no node has its own
// version any more, and all hold the one before. It needs no verdict either.
func WithdrawRollout(s *intent.Sealer, live intent.Payload, serial int64) (intent.Envelope, error) {
	if live.Rollout == nil || live.Previous == nil {
		return nil, errors.New("withdraw version: there is none before to hold nodes at")
	}
	own := live
	live.Version, live.Serial = live.VersionSerial(), serial
	live.Withdrawn = slices.DeleteFunc(slices.Clone(live.Withdrawn), func(v intent.Payload) bool { return v.SameVersion(&own) })
	live.Rollout = &intent.Rollout{Step: live.Rollout.Step, Since: live.Rollout.Since}
	return s.Seal(live)
}

// NextSerial is the serial after last at a time given in unix milliseconds.
func NextSerial(last, nowMillis int64) int64 { return max(last+1, nowMillis) }
