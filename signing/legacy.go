package signing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	rekor "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	"github.com/sigstore/cosign/v2/pkg/oci"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore/pkg/signature/payload"

	"github.com/skep-dev/skep/signing/collect"
)

// readLegacySignature reads a simple signing payload. Its digest and its type
// are checked here: cosign's own check leaves the type aside, and a key may
// sign other things than images.
func readLegacySignature(a *collect.Artifact, digest v1.Hash) (*claim, error) {
	var p payload.SimpleContainerImage
	if err := json.Unmarshal(a.Content, &p); err != nil {
		return nil, errors.New("its payload is not JSON")
	}
	if p.Critical.Type != payload.CosignSignatureType {
		return nil, fmt.Errorf("its payload is of type %q, not %q", p.Critical.Type, payload.CosignSignatureType)
	}
	if p.Critical.Image.DockerManifestDigest != digest.String() {
		return nil, fmt.Errorf("it is about another image: its payload names %q, not %s", p.Critical.Image.DockerManifestDigest, digest)
	}
	b64 := a.Annotations[static.SignatureAnnotationKey]
	if b64 == "" {
		return nil, fmt.Errorf("it has no signature: the annotation %s is missing", static.SignatureAnnotationKey)
	}
	c := &claim{annotations: stringsOf(p.Optional)}
	return c, c.readLegacyMaterial(a, b64, func(ctx context.Context, s oci.Signature, o *cosign.CheckOpts) error {
		_, err := cosign.VerifyImageSignature(ctx, s, digest, o)
		return err
	})
}

// readLegacyAttestation reads a DSSE envelope with an in-toto statement.
func readLegacyAttestation(a *collect.Artifact, digest v1.Hash) (*claim, error) {
	var envelope dsse.Envelope
	if err := json.Unmarshal(a.Content, &envelope); err != nil {
		return nil, errors.New("it is not a DSSE envelope")
	}
	raw, err := envelope.DecodeB64Payload()
	if err != nil {
		return nil, errors.New("the payload of its DSSE envelope is not base64")
	}
	c, err := readStatement(envelope.PayloadType, raw, digest)
	if err != nil {
		return nil, err
	}
	return c, c.readLegacyMaterial(a, "", func(ctx context.Context, s oci.Signature, o *cosign.CheckOpts) error {
		_, err := cosign.VerifyBlobAttestation(ctx, s, digest, o)
		return err
	})
}

// legacyMaterial is an artifact in cosign's words.
type legacyMaterial struct {
	// bare is for keys, which ask nothing of a certificate; full has one, where there
	// is one. Both have the log's entry and the timestamp that come with it.
	bare, full oci.Signature
	check      legacyCheck
}

// legacyCheck is one of cosign's verifications.
type legacyCheck func(context.Context, oci.Signature, *cosign.CheckOpts) error

// readLegacyMaterial reads what the annotations hold, and has the claim proven by it.
func (c *claim) readLegacyMaterial(a *collect.Artifact, b64 string, check legacyCheck) error {
	options, err := readLegacyWitnesses(a)
	if err != nil {
		return err
	}
	m := legacyMaterial{check: check}
	if m.bare, err = static.NewSignature(a.Content, b64, options...); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	cert := a.Annotations[static.CertificateAnnotationKey]
	if c.certified = cert != ""; c.certified {
		options = append(options, static.WithCertChain([]byte(cert), []byte(a.Annotations[static.ChainAnnotationKey])))
	}
	if m.full, err = static.NewSignature(a.Content, b64, options...); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	c.prove, c.witness = m.prove, m.witness
	return nil
}

// readLegacyWitnesses reads the log's entry and the timestamp.
func readLegacyWitnesses(a *collect.Artifact) ([]static.Option, error) {
	var options []static.Option
	if text := a.Annotations[static.BundleAnnotationKey]; text != "" {
		var entry rekor.RekorBundle
		if err := json.Unmarshal([]byte(text), &entry); err != nil {
			return nil, fmt.Errorf("the annotation %s holds no log entry", static.BundleAnnotationKey)
		}
		if _, ok := entry.Payload.Body.(string); !ok {
			return nil, fmt.Errorf("the annotation %s holds a log entry without a body", static.BundleAnnotationKey)
		}
		options = append(options, static.WithBundle(&entry))
	}
	if text := a.Annotations[static.RFC3161TimestampAnnotationKey]; text != "" {
		var stamp rekor.RFC3161Timestamp
		if err := json.Unmarshal([]byte(text), &stamp); err != nil {
			return nil, fmt.Errorf("the annotation %s holds no timestamp", static.RFC3161TimestampAnnotationKey)
		}
		options = append(options, static.WithRFC3161Timestamp(&stamp))
	}
	return options, nil
}

// of is the material that a party asks for.
func (m *legacyMaterial) of(p *signer) oci.Signature {
	if p.kind == KindKey {
		return m.bare
	}
	return m.full
}

// prove tries the legacy ways of a party. Cosign stumbles over some timestamps (v2.6.5
// takes the first of none), so each way is guarded.
func (m *legacyMaterial) prove(ctx context.Context, p *signer) (proof, error) {
	s := m.of(p)
	entry, err := s.Bundle()
	if err != nil {
		return proof{}, fmt.Errorf("read its log entry: %w", err)
	}
	stamp, err := s.RFC3161Timestamp()
	if err != nil {
		return proof{}, fmt.Errorf("read its timestamp: %w", err)
	}
	certificate, err := s.Cert()
	if err != nil {
		return proof{}, fmt.Errorf("read its certificate: %w", err)
	}
	with := company{logged: entry != nil, stamped: stamp != nil, certificate: certificate}
	return tryWays(p, p.legacy, with, func(way cosign.CheckOpts) (proof, error) {
		if err := guarded(func() error { return m.tryWay(ctx, s, way) }); err != nil {
			return proof{}, err
		}
		return legacyProof(s, p)
	})
}

func (m *legacyMaterial) tryWay(ctx context.Context, s oci.Signature, way cosign.CheckOpts) error {
	entry, err := s.Bundle()
	if err == nil && entry == nil && !way.IgnoreTlog {
		return errors.New("no entry of a transparency log comes with it: sign with one, or set insecureIgnoreTlog on the signer")
	}
	return m.check(ctx, s, &way)
}

func (m *legacyMaterial) witness(p *signer) (witness, error) {
	return legacyWitness(m.of(p), p.legacy[0])
}

// legacyProof reads the identity from a signature that was just verified.
func legacyProof(s oci.Signature, p *signer) (proof, error) {
	if p.kind == KindKey {
		return proof{}, nil
	}
	cert, err := s.Cert()
	if err != nil || cert == nil {
		return proof{}, errors.New("its certificate cannot be read")
	}
	summary, err := certificate.SummarizeCertificate(cert)
	if err != nil {
		return proof{}, fmt.Errorf("read its certificate: %w", err)
	}
	return proof{issuer: summary.Issuer, subject: summary.SubjectAlternativeName, claims: claimsOf(summary.Extensions), ends: cert.NotAfter}, nil
}
