package signing

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/skep-dev/skep/signing/collect"
)

// readBundle reads a sigstore bundle: a DSSE envelope with an in-toto
// statement, or a signature of the image's manifest itself.
func readBundle(a *collect.Artifact, digest v1.Hash) (*claim, error) {
	var b bundle.Bundle
	if err := b.UnmarshalJSON(a.Content); err != nil {
		return nil, fmt.Errorf("it is not a sigstore bundle: %w", err)
	}
	c := &claim{}
	switch {
	case b.GetDsseEnvelope() != nil:
		var err error
		envelope := b.GetDsseEnvelope()
		if c, err = readStatement(envelope.GetPayloadType(), envelope.GetPayload(), digest); err != nil {
			return nil, err
		}
	case b.GetMessageSignature() == nil:
		return nil, errors.New("it holds neither an envelope nor a signature")
	case hex.EncodeToString(b.GetMessageSignature().GetMessageDigest().GetDigest()) != digest.Hex:
		return nil, fmt.Errorf("it is about another image: it signs %x, not %s", b.GetMessageSignature().GetMessageDigest().GetDigest(), digest)
	}
	content, err := b.VerificationContent()
	if err != nil {
		return nil, fmt.Errorf("read its certificate: %w", err)
	}
	raw, err := hex.DecodeString(digest.Hex)
	if err != nil {
		return nil, fmt.Errorf("decode digest: %w", err)
	}
	c.certified = content.Certificate() != nil
	c.prove = func(_ context.Context, p *signer) (proof, error) {
		found, err := proveBundle(&b, content.Certificate(), p, verify.WithArtifactDigest(digest.Algorithm, raw))
		if c.certified {
			found.ends = content.Certificate().NotAfter
		}
		return found, err
	}
	c.witness = func(p *signer) (witness, error) { return bundleWitness(&b, p.material) }
	return c, nil
}

// proveBundle tries the ways of a party. The certificate is the bundle's; nil where it has
// none.
func proveBundle(b *bundle.Bundle, certificate *x509.Certificate, p *signer, artifact verify.ArtifactPolicyOption) (proof, error) {
	entries, err := b.TlogEntries()
	if err != nil {
		return proof{}, fmt.Errorf("read its log entries: %w", err)
	}
	stamps, err := b.Timestamps()
	if err != nil {
		return proof{}, fmt.Errorf("read its timestamps: %w", err)
	}
	with := company{logged: len(entries) > 0, stamped: len(stamps) > 0, certificate: certificate}
	return tryWays(p, p.bundled, with, func(way bundleCheck) (proof, error) {
		result, err := way.verifier.Verify(b, verify.NewPolicy(artifact, way.policy...))
		if err != nil {
			return proof{}, err
		}
		return bundleProof(result), nil
	})
}

// bundleProof reads the identity.
func bundleProof(r *verify.VerificationResult) proof {
	if r.Signature == nil || r.Signature.Certificate == nil {
		return proof{}
	}
	summary := r.Signature.Certificate
	return proof{issuer: summary.Issuer, subject: summary.SubjectAlternativeName, claims: claimsOf(summary.Extensions)}
}
