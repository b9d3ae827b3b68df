package signing

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/text"
)

// maxRejected is how many rejections are kept.
const maxRejected = 64

// claim is what an artifact says, before anybody vouches for it.
type claim struct {
	// attestation is nil where the artifact is a signature.
	attestation *Attestation
	annotations map[string]string
	// certified is true where a certificate comes with it.
	certified bool
	// prove tries the ways of one party; the proof is who signed.
	prove func(ctx context.Context, p *signer) (proof, error)
	// witness is who else saw it, by the material of one party.
	witness func(p *signer) (witness, error)
}

// proof is what a way that succeeded found out.
type proof struct {
	issuer  string
	subject string
	claims  Claims
	// ends is when the certificate does; zero where there is none.
	ends    time.Time
	witness witness
	// untrue is why what comes with it as a witness is none; nil where it is one, or
	// nothing comes with it.
	untrue error
}

// company is what comes with a claim, before anybody verified it.
type company struct {
	logged, stamped bool
	// certificate is nil where none does.
	certificate *x509.Certificate
}

// tryWays proves a claim by the first way of a party that does. Ways go from the strict
// one, which asks for an entry of a transparency log, over the one that asks for a timestamp
// to the one that asks for neither, as far as the party has them. Where none does, the error
// is that of the way that asks for what comes with the claim.
func tryWays[W any](p *signer, ways []W, with company, try func(W) (proof, error)) (proof, error) {
	asks := 2
	switch {
	case with.logged:
		asks = 0
	case with.stamped:
		asks = 1
	case p.present && with.certificate != nil && time.Now().After(with.certificate.NotAfter):
		return proof{}, fmt.Errorf("no log entry or timestamp comes with it, and its certificate was valid until %s: sign again", stamp(with.certificate.NotAfter))
	}
	asks = min(asks, len(ways)-1)
	var why error
	for i, way := range ways {
		found, err := try(way)
		if err == nil {
			return found, nil
		}
		if i == asks {
			why = err
		}
	}
	return proof{}, why
}

// recognise proves that a claim is a party's. The error says why it is not.
func (c *claim) recognise(ctx context.Context, p *signer) (found proof, err error) {
	err = guarded(func() (err error) {
		found, err = c.prove(ctx, p)
		return err
	})
	if err == nil && p.material != nil {
		found.untrue = guarded(func() (err error) {
			found.witness, err = c.witness(p)
			return err
		})
	}
	return found, err
}

// Verify tries every signer on everything that was collected, in memory: no
// network, whatever a certificate or an entry says. The only clock that counts
// is the timestamp authority's or the log's, but for signers that do without
// both (insecureIgnoreTlog), whose certificates must be valid now: by the caller's
// clock, and by this machine's.
//
// A signature that does not count is not an error but a Rejection. An error
// means that c is not what package collect returns, or that ctx ended.
func (t *Trust) Verify(ctx context.Context, c collect.Collected, now time.Time) (Evidence, error) {
	digest, err := v1.NewHash(c.Digest)
	if err != nil || digest.Algorithm != "sha256" {
		return Evidence{}, fmt.Errorf("verify signatures: digest %q is not sha256:…: collect them again", c.Digest)
	}
	e := Evidence{
		Digest: c.Digest, TrustRevision: t.revision,
		Signatures: []Signature{}, Attestations: []Attestation{}, Partial: c.Partial,
		Truncated: oneLine(c.Truncated),
	}
	for _, s := range c.Skipped {
		e.Rejected = append(e.Rejected, Rejection{Reason: oneLine(s)})
	}
	signed, attested := vouchers{}, vouchers{}
	for i := range c.Artifacts {
		if err := ctx.Err(); err != nil {
			return Evidence{}, fmt.Errorf("verify signatures of %s: %w", c.Digest, err)
		}
		signatures, attestations := len(e.Signatures), len(e.Attestations)
		if t.evaluator(ctx, &e, &c.Artifacts[i], digest, now) {
			for _, s := range e.Signatures[signatures:] {
				signed.note(len(e.Counted), &s.Time, &s)
			}
			for _, a := range e.Attestations[attestations:] {
				attested.note(len(e.Counted), &a.Time, &a)
			}
			e.Counted = append(e.Counted, Counted{Artifact: i})
		}
	}
	signed.tell(e.Counted, func(c *Counted) *[]int { return &c.Signatures })
	attested.tell(e.Counted, func(c *Counted) *[]int { return &c.Attestations })
	e.tidy()
	return e, nil
}

// evaluator adds to e what one artifact amounts to, and reports whether it counts.
func (t *Trust) evaluator(ctx context.Context, e *Evidence, a *collect.Artifact, digest v1.Hash, now time.Time) bool {
	var c *claim
	err := guarded(func() (err error) {
		c, err = readClaim(a, digest)
		return err
	})
	if err != nil {
		e.reject(a, "", "%v", err)
		return false
	}
	tried := t.try(ctx, c, now)
	switch {
	case tried.revoked != nil:
		e.reject(a, tried.revoked.name, "%s", tried.revoked.revocation.of(tried.at))
		e.Rejected[len(e.Rejected)-1].Revoked = true
		e.Revoked = append(e.Revoked, tried.revoked.name)
	case len(tried.matches) > 0:
		for _, m := range tried.matches {
			e.add(c, m.party, m.proof)
		}
	case len(tried.unmet) > 0:
		for _, f := range tried.unmet {
			e.reject(a, f.party.name, "the signature is good, but %v", f.err)
		}
	default:
		e.explain(a, c, tried)
	}
	return tried.revoked == nil && len(tried.matches) > 0
}

// trial is what became of one claim: who vouches for it, and why the others do
// not.
type trial struct {
	// now is what time it is.
	now     time.Time
	matches []match
	// revoked knows the claim as its own, and at is the trusted time of it.
	revoked *signer
	at      time.Time
	// unmet are those whose signature it is, and who ask for more.
	unmet  []failure
	keys   []string
	failed []failure
}

type match struct {
	party *signer
	proof proof
}

type failure struct {
	party *signer
	err   error
}

// try asks every signer, until a revoked one knows the claim as its own.
func (t *Trust) try(ctx context.Context, c *claim, now time.Time) trial {
	tried := trial{now: now}
	for _, p := range t.parties {
		found, err := c.recognise(ctx, p)
		switch {
		case err != nil && p.kind == KindKey:
			tried.keys = append(tried.keys, p.name)
		case err != nil:
			tried.failed = append(tried.failed, failure{p, err})
		default:
			tried.weigh(c, p, found)
		}
		if tried.revoked != nil {
			return tried
		}
	}
	return tried
}

// weigh decides what becomes of a claim that was made as a party's are.
func (tried *trial) weigh(c *claim, p *signer, found proof) {
	reason := p.demands.disowned(c, found)
	if at := found.witness.time; reason == nil && p.revocation.revokes(at) {
		tried.revoked, tried.at = p, at
		return
	}
	if reason == nil {
		reason = p.demands.unmet(found)
	}
	if end := p.until(found); reason == nil && !end.IsZero() && tried.now.After(end) {
		reason = expired(end)
	}
	if reason != nil {
		tried.unmet = append(tried.unmet, failure{p, reason})
		return
	}
	tried.matches = append(tried.matches, match{p, found})
}

// expired says that a signature counted only while its certificate was valid.
func expired(end time.Time) error {
	return fmt.Errorf("its certificate was valid until %s, and no log or timestamp authority of the signer's trusted root saw it before: sign again", stamp(end))
}

// until is when a proof ends that counts because its certificate is valid now; zero
// where it does not hang on that.
func (p *signer) until(found proof) time.Time {
	if !p.present || !found.witness.time.IsZero() {
		return time.Time{}
	}
	return found.ends
}

// explain rejects an artifact that no signer recognised. Keys have nothing to
// say but no; of a certificate, every keyless signer says what is wrong.
func (e *Evidence) explain(a *collect.Artifact, c *claim, tried trial) {
	switch {
	case len(tried.keys) == 0 && len(tried.failed) == 0:
		e.reject(a, "", "no signer is known that it could be from: name one in a BpfSigner")
	case !c.certified && len(tried.keys) == 0:
		e.reject(a, "", "it was made with a key, and every known signer signs with a certificate: name the key in a BpfSigner")
	case !c.certified || len(tried.failed) == 0:
		e.reject(a, "", "no key of %s made this signature, or it was altered", strings.Join(tried.keys, ", "))
	default:
		for _, f := range tried.failed {
			e.reject(a, f.party.name, "%v", f.err)
		}
	}
}

func (e *Evidence) reject(a *collect.Artifact, signer, format string, args ...any) {
	e.Rejected = append(e.Rejected, Rejection{Signer: signer, Reason: oneLine(a.Origin + ": " + fmt.Sprintf(format, args...))})
}

// maxReason is the length of a reason, in runes.
const maxReason = 400

// oneLine makes text that may hold words of strangers fit to print: what is
// between a BEGIN and its END goes, and so do line ends and control characters.
func oneLine(said string) string {
	for {
		before, rest, found := strings.Cut(said, "-----BEGIN ")
		_, after, ended := strings.Cut(rest, "-----END ")
		if !found || !ended {
			break
		}
		_, after, _ = strings.Cut(after, "-----")
		said = before + "(PEM)" + after
	}
	said = strings.Join(strings.FieldsFunc(said, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }), " ")
	return text.CutRunes(said, maxReason)
}

// missing returns an annotation of want, as key=value, that have lacks; empty
// where it lacks none.
func missing(want, have map[string]string) string {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if v, ok := have[k]; !ok || v != want[k] {
			return k + "=" + want[k]
		}
	}
	return ""
}

func (e *Evidence) add(c *claim, p *signer, found proof) {
	if end := p.until(found).UTC(); !end.IsZero() && (e.Until.IsZero() || end.Before(e.Until)) {
		e.Until = end
	}
	s := Signature{
		Signer: p.name, Kind: p.kind, Issuer: found.issuer, Subject: found.subject, Claims: found.claims,
		Annotations: c.annotations, Time: found.witness.time,
	}
	if c.attestation == nil {
		e.Signatures = append(e.Signatures, s)
		return
	}
	e.Attestations = append(e.Attestations, Attestation{
		Signer: p.name, Kind: p.kind, Issuer: found.issuer, Subject: found.subject, Claims: found.claims, Time: found.witness.time,
		PredicateType: c.attestation.PredicateType, Predicate: c.attestation.Predicate,
	})
	if p.countAttestations {
		s.PredicateType = c.attestation.PredicateType
		e.Signatures = append(e.Signatures, s)
	}
}

// tidy sorts, drops what is there twice, and bounds the rejections.
func (e *Evidence) tidy() {
	slices.SortStableFunc(e.Signatures, func(a, b Signature) int {
		return cmp.Or(strings.Compare(a.Signer, b.Signer), strings.Compare(a.Kind, b.Kind),
			strings.Compare(a.Issuer, b.Issuer), strings.Compare(a.Subject, b.Subject), a.Time.Compare(b.Time),
			strings.Compare(a.PredicateType, b.PredicateType))
	})
	e.Signatures = slices.CompactFunc(e.Signatures, func(a, b Signature) bool { return reflect.DeepEqual(a, b) })
	slices.SortStableFunc(e.Attestations, func(a, b Attestation) int {
		return cmp.Or(strings.Compare(a.Signer, b.Signer), strings.Compare(a.PredicateType, b.PredicateType),
			strings.Compare(string(a.Predicate), string(b.Predicate)), a.Time.Compare(b.Time))
	})
	e.Attestations = slices.CompactFunc(e.Attestations, func(a, b Attestation) bool { return reflect.DeepEqual(a, b) })
	slices.Sort(e.Revoked)
	e.Revoked = slices.Compact(e.Revoked)
	// A revocation is said first: strangers' signatures, however many, hide none.
	slices.SortStableFunc(e.Rejected, func(a, b Rejection) int {
		switch {
		case a.Revoked == b.Revoked:
			return 0
		case a.Revoked:
			return -1
		}
		return 1
	})
	if more := len(e.Rejected) - maxRejected; more > 0 {
		e.Rejected = append(e.Rejected[:maxRejected], Rejection{Reason: fmt.Sprintf("and %d more", more)})
	}
}

// What is decoded of strangers' JSON, counted before it is: a value of two bytes
// takes a hundred of the memory. A bundle has some hundred values; a predicate,
// such as a list of all that is in an image, has many.
const (
	maxValues          = 8192
	maxStatementValues = 1 << 18
)

// counted rejects JSON that holds more values than are decoded.
func counted(what string, data []byte, most int) error {
	if n := image.Values(data); n > most {
		return fmt.Errorf("%s holds %d values, and no more than %d are read", what, n, most)
	}
	return nil
}

// readClaim reads what an artifact says and rejects what is not about the
// digest.
func readClaim(a *collect.Artifact, digest v1.Hash) (*claim, error) {
	if err := counted("it", a.Content, maxValues); err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(a.Annotations)) {
		if err := counted("the annotation "+key, []byte(a.Annotations[key]), maxValues); err != nil {
			return nil, err
		}
	}
	switch a.Kind {
	case collect.LegacySignature:
		return readLegacySignature(a, digest)
	case collect.LegacyAttestation:
		return readLegacyAttestation(a, digest)
	case collect.Bundle:
		return readBundle(a, digest)
	}
	return nil, fmt.Errorf("its kind %q is unknown", a.Kind)
}

// statement is the part of an in-toto statement that is read. Source:
// https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
type statement struct {
	Type          string          `json:"_type"`
	Subject       json.RawMessage `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate"`
}

// subject is one of the things that a statement is about.
type subject struct {
	Digest      map[string]string `json:"digest"`
	Annotations map[string]any    `json:"annotations"`
}

// statementPrefix begins the type of every version of a statement.
const statementPrefix = "https://in-toto.io/Statement/"

// readStatement reads an in-toto statement and rejects one about something
// else. A statement with cosign's own predicate type is a signature: its
// annotations stand beside the subject.
func readStatement(payloadType string, raw []byte, digest v1.Hash) (*claim, error) {
	if payloadType != ctypes.IntotoPayloadType {
		return nil, fmt.Errorf("its envelope holds %q, not an in-toto statement", payloadType)
	}
	if err := counted("its statement", raw, maxStatementValues); err != nil {
		return nil, err
	}
	var s statement
	if err := json.Unmarshal(raw, &s); err != nil || !strings.HasPrefix(s.Type, statementPrefix) {
		return nil, errors.New("its envelope holds no in-toto statement")
	}
	subjects, err := s.subjects()
	if err != nil {
		return nil, err
	}
	for _, subject := range subjects {
		if subject.Digest[digest.Algorithm] != digest.Hex {
			continue
		}
		c := &claim{annotations: stringsOf(subject.Annotations)}
		if s.PredicateType != ctypes.CosignSignPredicateType {
			c.attestation = &Attestation{PredicateType: s.PredicateType, Predicate: s.Predicate}
			if len(s.Predicate) == 0 {
				c.attestation.Predicate = json.RawMessage("null")
			}
		}
		return c, nil
	}
	return nil, fmt.Errorf("it is about another image: none of its %d subjects is %s", len(subjects), digest)
}

// subjects are what the statement is about.
func (s *statement) subjects() ([]subject, error) {
	if err := counted("the list of its subjects", s.Subject, maxValues); err != nil || len(s.Subject) == 0 {
		return nil, err
	}
	var all []subject
	if json.Unmarshal(s.Subject, &all) != nil {
		return nil, errors.New("its envelope holds no in-toto statement")
	}
	return all, nil
}

// stringsOf keeps the values that are strings, as cosign compares them.
func stringsOf(in map[string]any) map[string]string {
	var out map[string]string
	for k, v := range in {
		if s, ok := v.(string); ok {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = s
		}
	}
	return out
}
