// Package signing tells who signed an image: it collects signatures and
// attestations once per digest, then tries every named signer in memory.
//
// It is the only room that imports sigstore. It decides nothing: an image
// nobody signed yields empty Evidence, and package policies refuses it.
package signing

import (
	"encoding/json"
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
}

// Signature is one signature that counts.
type Signature struct {
	// Signer is the name of the BpfSigner.
	Signer string `json:"signer"`
	// Kind is key or keyless.
	Kind string `json:"kind"`
	// Issuer and Subject are from the certificate of a keyless signature.
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject,omitempty"`
	// Annotations are from the signed payload.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Time is when a log or timestamp authority saw the signature; zero where
	// none did.
	Time time.Time `json:"time,omitzero"`
}

// Attestation is one in-toto statement about the digest that counts.
type Attestation struct {
	Signer        string          `json:"signer"`
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

// RevokedSigners returns the names of the signers that made a signature of the
// digest and were revoked since, sorted and each once.
func (e *Evidence) RevokedSigners() []string { return e.Revoked }
