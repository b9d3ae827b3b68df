package signing

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/cosign/v2/pkg/oci"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
)

// witness is who else saw a signature, as far as a trusted root can tell.
type witness struct {
	// logged is true where a transparency log that the root names has it.
	logged bool
	// stamped is true where a timestamp authority that the root names has.
	stamped bool
	// time is the earliest at which one of them saw it; zero where none did.
	time time.Time
}

// at notes a time, unless a certificate was not valid then: what it says of the
// signature is nothing then.
func (w *witness) at(t time.Time, certificate *x509.Certificate) bool {
	if certificate != nil && (t.Before(certificate.NotBefore) || t.After(certificate.NotAfter)) {
		return false
	}
	if w.time.IsZero() || t.Before(w.time) {
		w.time = t.UTC()
	}
	return true
}

// falseEntry says that an entry of a log that the trusted root names comes with a
// signature, and is not true of it.
func falseEntry(err error) error {
	return fmt.Errorf("the entry of a transparency log that comes with it is not true of it: sign it again: %w", err)
}

// bundleWitness reads who saw a bundle's signature. Entries of logs that the trusted
// root does not name say nothing; all others must be true.
func bundleWitness(b *bundle.Bundle, trusted root.TrustedMaterial) (witness, error) {
	var w witness
	content, err := b.VerificationContent()
	if err != nil {
		return w, fmt.Errorf("read its certificate: %w", err)
	}
	entries, err := b.TlogEntries()
	if err != nil {
		return w, falseEntry(err)
	}
	known := 0
	for _, entry := range entries {
		if trusted.RekorLogs()[hex.EncodeToString([]byte(entry.LogKeyID()))] != nil {
			known++
		}
	}
	if known > 0 {
		times, err := verify.VerifyTlogEntry(b, trusted, known, true)
		if err != nil {
			return witness{}, falseEntry(err)
		}
		w.logged = true
		for _, t := range times {
			w.at(t.Time, content.Certificate())
		}
	}
	stamps, _, err := verify.VerifySignedTimestamp(b, trusted)
	if err != nil {
		return w, fmt.Errorf("read its timestamps: %w", err)
	}
	for _, stamp := range stamps {
		w.stamped = w.at(stamp.Time, content.Certificate()) || w.stamped
	}
	return w, nil
}

// legacyWitness is bundleWitness of a signature as cosign stores it in annotations.
// The options have the trusted root, and the key where there is no certificate.
func legacyWitness(s oci.Signature, options cosign.CheckOpts) (witness, error) {
	var w witness
	certificate, err := s.Cert()
	if err != nil {
		return w, fmt.Errorf("read its certificate: %w", err)
	}
	entry, err := s.Bundle()
	if err != nil {
		return w, falseEntry(err)
	}
	if entry != nil && options.TrustedMaterial.RekorLogs()[entry.Payload.LogID] != nil {
		if _, err := cosign.VerifyBundle(s, &options); err != nil {
			return w, falseEntry(err)
		}
		if !w.at(time.Unix(entry.Payload.IntegratedTime, 0), certificate) {
			return w, falseEntry(errors.New("its time is not one at which the certificate was valid"))
		}
		w.logged = true
	}
	stamps, err := legacyStamps(s, options.TrustedMaterial)
	if err != nil {
		return w, fmt.Errorf("read its timestamp: %w", err)
	}
	for _, stamp := range stamps {
		w.stamped = w.at(stamp.Time, certificate) || w.stamped
	}
	return w, nil
}

// legacyStamps verifies the timestamp that comes with a signature.
func legacyStamps(s oci.Signature, trusted root.TrustedMaterial) ([]*root.Timestamp, error) {
	stamp, err := s.RFC3161Timestamp()
	if err != nil || stamp == nil {
		return nil, err
	}
	signed, err := stampedParts(s)
	if err != nil {
		return nil, err
	}
	for _, part := range signed {
		stamps, _, err := verify.VerifySignedTimestamp(&stampedBytes{signed: part, stamp: stamp.SignedRFC3161Timestamp}, trusted)
		if err != nil || len(stamps) > 0 {
			return stamps, err
		}
	}
	return nil, nil
}

// stampedParts are what a timestamp may be of: the signature, and of an attestation the
// whole envelope, which cosign 2 stamps, or the one signature in it, as cosign 3 does.
func stampedParts(s oci.Signature) ([][]byte, error) {
	text, err := s.Base64Signature()
	if err != nil {
		return nil, err
	}
	if text != "" {
		raw, err := base64.StdEncoding.DecodeString(text)
		return [][]byte{raw}, err
	}
	content, err := s.Payload()
	if err != nil {
		return nil, err
	}
	parts := [][]byte{content}
	var envelope dsse.Envelope
	if json.Unmarshal(content, &envelope) == nil && len(envelope.Signatures) == 1 {
		if raw, err := base64.StdEncoding.DecodeString(envelope.Signatures[0].Sig); err == nil {
			parts = append(parts, raw)
		}
	}
	return parts, nil
}

// stampedBytes are bytes with a timestamp, in sigstore's words.
type stampedBytes struct {
	verify.BaseSignedEntity
	signed, stamp []byte
}

// Timestamps implements verify.SignedEntity.
func (b *stampedBytes) Timestamps() ([][]byte, error) { return [][]byte{b.stamp}, nil }

// SignatureContent implements verify.SignedEntity.
func (b *stampedBytes) SignatureContent() (verify.SignatureContent, error) { return b, nil }

// Signature implements verify.SignatureContent.
func (b *stampedBytes) Signature() []byte { return b.signed }

// EnvelopeContent implements verify.SignatureContent: there is none.
func (b *stampedBytes) EnvelopeContent() verify.EnvelopeContent { return nil }

// MessageSignatureContent implements verify.SignatureContent: there is none.
func (b *stampedBytes) MessageSignatureContent() verify.MessageSignatureContent { return nil }
