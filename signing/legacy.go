package signing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	rekor "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	"github.com/sigstore/cosign/v2/pkg/oci"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

// readLegacySignature reads a simple signing payload. Its digest and its type
// are checked here: cosign's own check leaves the type aside, and a key may
// sign other things than images.
func readLegacySignature(a *Artifact, digest v1.Hash) (*claim, error) {
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
	bare, full, err := readLegacyMaterial(a, b64)
	if err != nil {
		return nil, err
	}
	c := &claim{annotations: stringsOf(p.Optional), certified: a.Annotations[static.CertificateAnnotationKey] != ""}
	c.prove = proveLegacy(bare, full, func(ctx context.Context, s oci.Signature, o *cosign.CheckOpts) (bool, error) {
		return cosign.VerifyImageSignature(ctx, s, digest, o)
	})
	return c, nil
}

// readLegacyAttestation reads a DSSE envelope with an in-toto statement.
func readLegacyAttestation(a *Artifact, digest v1.Hash) (*claim, error) {
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
	bare, full, err := readLegacyMaterial(a, "")
	if err != nil {
		return nil, err
	}
	c.certified = a.Annotations[static.CertificateAnnotationKey] != ""
	c.prove = proveLegacy(bare, full, func(ctx context.Context, s oci.Signature, o *cosign.CheckOpts) (bool, error) {
		return cosign.VerifyBlobAttestation(ctx, s, digest, o)
	})
	return c, nil
}

// readLegacyMaterial gives the artifact in cosign's words twice: bare, for
// keys, which ask nothing of a certificate or a log; and with all that its
// annotations hold.
func readLegacyMaterial(a *Artifact, b64 string) (bare, full oci.Signature, err error) {
	if bare, err = static.NewSignature(a.Content, b64); err != nil {
		return nil, nil, fmt.Errorf("it cannot be read: %w", err)
	}
	var options []static.Option
	if cert := a.Annotations[static.CertificateAnnotationKey]; cert != "" {
		options = append(options, static.WithCertChain([]byte(cert), []byte(a.Annotations[static.ChainAnnotationKey])))
	}
	if text := a.Annotations[static.BundleAnnotationKey]; text != "" {
		var entry rekor.RekorBundle
		if err := json.Unmarshal([]byte(text), &entry); err != nil {
			return nil, nil, fmt.Errorf("the annotation %s holds no log entry", static.BundleAnnotationKey)
		}
		if _, ok := entry.Payload.Body.(string); !ok {
			return nil, nil, fmt.Errorf("the annotation %s holds a log entry without a body", static.BundleAnnotationKey)
		}
		options = append(options, static.WithBundle(&entry))
	}
	if text := a.Annotations[static.RFC3161TimestampAnnotationKey]; text != "" {
		var stamp rekor.RFC3161Timestamp
		if err := json.Unmarshal([]byte(text), &stamp); err != nil {
			return nil, nil, fmt.Errorf("the annotation %s holds no timestamp", static.RFC3161TimestampAnnotationKey)
		}
		options = append(options, static.WithRFC3161Timestamp(&stamp))
	}
	if full, err = static.NewSignature(a.Content, b64, options...); err != nil {
		return nil, nil, fmt.Errorf("it cannot be read: %w", err)
	}
	return bare, full, nil
}

// legacyCheck is one of cosign's verifications. The bool tells whether a log
// entry was verified.
type legacyCheck func(context.Context, oci.Signature, *cosign.CheckOpts) (bool, error)

// proveLegacy tries the legacy ways of a party. The first way is the strict
// one: its error is the one that tells most. Cosign stumbles over some
// timestamps (v2.6.5 takes the first of none), so each way is guarded.
func proveLegacy(bare, full oci.Signature, check legacyCheck) func(context.Context, *party) (proof, error) {
	return func(ctx context.Context, p *party) (proof, error) {
		var first error
		for i := range p.legacy {
			var found proof
			err := guarded(func() (err error) {
				found, err = proveLegacyOnce(ctx, bare, full, p.legacy[i], check)
				return err
			})
			if err == nil {
				return found, nil
			}
			if first == nil {
				first = err
			}
		}
		return proof{}, first
	}
}

func proveLegacyOnce(ctx context.Context, bare, full oci.Signature, way cosign.CheckOpts, check legacyCheck) (proof, error) {
	s := bare
	if way.SigVerifier == nil {
		s = full
		entry, err := s.Bundle()
		if err == nil && entry == nil && !way.IgnoreTlog {
			return proof{}, errors.New("no entry of a transparency log comes with it: sign with one, or set insecureIgnoreTlog on the signer")
		}
	}
	logged, err := check(ctx, s, &way)
	if err != nil {
		return proof{}, err
	}
	return legacyProof(s, &way, logged)
}

// legacyProof reads identity and time from a signature that was just verified.
func legacyProof(s oci.Signature, options *cosign.CheckOpts, logged bool) (proof, error) {
	var found proof
	if options.SigVerifier != nil {
		return found, nil
	}
	cert, err := s.Cert()
	if err != nil || cert == nil {
		return found, errors.New("its certificate cannot be read")
	}
	summary, err := certificate.SummarizeCertificate(cert)
	if err != nil {
		return found, fmt.Errorf("read its certificate: %w", err)
	}
	found.issuer, found.subject = summary.Issuer, summary.SubjectAlternativeName
	if logged {
		entry, err := s.Bundle()
		if err != nil || entry == nil {
			return found, errors.New("its log entry cannot be read")
		}
		found.time = time.Unix(entry.Payload.IntegratedTime, 0).UTC()
		return found, nil
	}
	if options.UseSignedTimestamps {
		stamp, err := cosign.VerifyRFC3161Timestamp(s, options)
		if err != nil {
			return found, fmt.Errorf("verify its timestamp: %w", err)
		}
		if stamp != nil {
			found.time = stamp.Time.UTC()
		}
	}
	return found, nil
}
