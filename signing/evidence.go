// Package signing says who signed an image: it tries every named signer on what package
// collect read once per digest, in memory.
//
// It and the packages below it are the only ones that import sigstore. It decides nothing:
// an image that nobody signed yields empty Evidence, and package policies denies it.
//
// Size: what counts, what is rejected and why, and which copy of it is needed is decided in one
// pass over what was collected, for each form of a signature and each kind of signer.
package signing

import (
	"encoding/json"
	"slices"
	"time"
)

// Evidence is who signed one digest, as far as one set of signers can tell. It
// is remembered by Digest and TrustRevision.
type Evidence struct {
	// Digest is the image's, as sha256:….
	Digest string `json:"digest"`
	// TrustRevision identifies the signers that were tried.
	TrustRevision string `json:"trustRevision"`
	// Signatures that a signer who is not revoked vouches for, sorted by
	// signer and kind.
	Signatures []Signature `json:"signatures"`
	// Attestations whose envelope such a signer vouches for.
	Attestations []Attestation `json:"attestations"`
	// Rejected says of every signature that was found and did not count why it
	// did not, for a person to read.
	Rejected []Rejection `json:"rejected,omitempty"`
	// Revoked are the names of revoked signers that made a signature of the digest,
	// sorted and each once. No bound on Rejected takes one away.
	Revoked []string `json:"revoked,omitempty"`
	// Partial is true where cosign's tags were not asked for: others may have
	// signed and attested too.
	Partial bool `json:"partial,omitempty"`
	// Truncated says why there may be more than was read: what is missing here says nothing.
	// Empty where all was read.
	Truncated string `json:"truncated,omitempty"`
	// Counted are the collected artifacts that count.
	Counted []Counted `json:"-"`
	// Until is the end of the first certificate that something here counts by because it
	// is valid now (insecureIgnoreTlog, and no trusted time). After it, the signatures
	// have to be verified again. Zero where nothing hangs on the clock.
	Until time.Time `json:"until,omitzero"`
}

// Counted is a collected artifact that counts.
type Counted struct {
	// Artifact is its index.
	Artifact int
	// Signatures and Attestations name those that it vouches for, at no later trusted time than
	// any other: anyone who may push can copy a signature, and only one of its copies is needed.
	// The names are valid within one Evidence.
	Signatures, Attestations []int
}

// Holds reports whether the evidence may still be used at a time.
func (e *Evidence) Holds(at time.Time) bool { return e.Until.IsZero() || !at.After(e.Until) }

// Signature is one signature that counts.
type Signature struct {
	// Signer is the name of the BpfSigner.
	Signer string `json:"signer"`
	// Kind is key or keyless.
	Kind string `json:"kind"`
	// Issuer, Subject and Claims are from the certificate of a keyless signature.
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject,omitempty"`
	Claims  Claims `json:"claims,omitzero"`
	// Annotations are from the signed payload.
	Annotations map[string]string `json:"annotations,omitempty"`
	// PredicateType is that of the attestation that counts as a signature, since the
	// signer says countAttestations; empty where it is a signature.
	PredicateType string `json:"predicateType,omitempty"`
	// Time is the trusted time: the earliest at which a log or timestamp authority
	// that the signer trusts saw the signature; zero where none did.
	Time time.Time `json:"time,omitzero"`
}

// Attestation is one in-toto statement about the digest that counts.
type Attestation struct {
	// Signer, Kind, Issuer, Subject, Claims and Time are as of a Signature.
	Signer        string          `json:"signer"`
	Kind          string          `json:"kind"`
	Issuer        string          `json:"issuer,omitempty"`
	Subject       string          `json:"subject,omitempty"`
	Claims        Claims          `json:"claims,omitzero"`
	Time          time.Time       `json:"time,omitzero"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate"`
}

// Rejection is a signature that did not count.
type Rejection struct {
	// Signer is the name of the BpfSigner it was tried against, or empty where
	// it matched none.
	Signer string `json:"signer,omitempty"`
	// Reason is for a person to read.
	Reason string `json:"reason"`
	// Revoked is true where Signer made the signature and was revoked since.
	Revoked bool `json:"revoked,omitempty"`
}

// Signers returns the names of the signers of the evidence's signatures, sorted
// and each once.
func (e *Evidence) Signers() []string {
	var names []string
	for _, s := range e.Signatures {
		if len(names) == 0 || names[len(names)-1] != s.Signer {
			names = append(names, s.Signer)
		}
	}
	return names
}

// Attesters returns the names of the signers of the evidence's attestations, sorted and
// each once.
func (e *Evidence) Attesters() []string {
	var names []string
	for _, a := range e.Attestations {
		names = append(names, a.Signer)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// SignedAt returns the trusted time of each of Signers, the earliest of its
// signatures; zero where none has one.
func (e *Evidence) SignedAt() map[string]time.Time {
	all := map[string]time.Time{}
	for _, s := range e.Signatures {
		if before, known := all[s.Signer]; !known || before.IsZero() || !s.Time.IsZero() && s.Time.Before(before) {
			all[s.Signer] = s.Time
		}
	}
	return all
}
