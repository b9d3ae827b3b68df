package sign

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore/pkg/signature/dsse"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/signing/collect"
)

// annotationPredicate says on a layer of the tag sha256-….att what kind of statement it has.
const annotationPredicate = "predicateType"

// Attest signs an in-toto statement whose subject is r.Digest, and writes it beside the
// image into the tag sha256-….att, as cosign attest does with a key and without a log.
// Attestations that are there stay. Two writers at once can lose one, as with Image.
func Attest(ctx context.Context, target collect.Source, r image.Resolved, key *PrivateKey, statement []byte) error {
	if err := attest(ctx, target, r, key, statement); err != nil {
		return fmt.Errorf("attest %s: %w", r.Reference, err)
	}
	return nil
}

func attest(ctx context.Context, target collect.Source, r image.Resolved, key *PrivateKey, statement []byte) error {
	digest, err := image.ParseDigest(r.Digest)
	if err != nil {
		return err
	}
	kind, err := predicateOf(statement, digest)
	if err != nil {
		return err
	}
	to, err := target.Attachments(r)
	if err != nil {
		return err
	}
	envelope, err := Envelope(key, statement)
	if err != nil {
		return err
	}
	m, err := readSignatures(ctx, to, collect.AttestationTag(digest))
	if err != nil {
		return err
	}
	d := describe(envelope, types.MediaType(ctypes.DssePayloadType))
	// The signature is in the envelope, and cosign reads no layer without the annotation.
	d.Annotations = map[string]string{static.SignatureAnnotationKey: "", annotationPredicate: kind}
	return addLayer(ctx, to, m, d, envelope, collect.AttestationTag(digest))
}

// predicateOf is the kind of a statement, which must be about the digest: no verifier takes
// any other.
func predicateOf(statement []byte, digest v1.Hash) (string, error) {
	var s struct {
		PredicateType string `json:"predicateType"`
		Subject       []struct {
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
	}
	if err := json.Unmarshal(statement, &s); err != nil {
		return "", fmt.Errorf("read statement: %w", err)
	}
	for _, subject := range s.Subject {
		if subject.Digest[digest.Algorithm] == digest.Hex {
			return s.PredicateType, nil
		}
	}
	return "", fmt.Errorf("the statement is about something else: none of its %d subjects is %s", len(s.Subject), digest)
}

// Envelope signs an in-toto statement: the DSSE envelope is what cosign attest-blob writes,
// and cosign verify-blob-attestation takes as --signature.
func Envelope(key *PrivateKey, statement []byte) ([]byte, error) {
	envelope, err := dsse.WrapSigner(key.signer, ctypes.IntotoPayloadType).SignMessage(bytes.NewReader(statement))
	if err != nil {
		return nil, fmt.Errorf("sign statement: %w", err)
	}
	return envelope, nil
}

// Blob signs the bytes of a file: the signature in base64 is what cosign sign-blob writes,
// and cosign verify-blob takes as --signature.
func Blob(key *PrivateKey, content []byte) ([]byte, error) {
	raw, err := key.signer.SignMessage(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return base64.StdEncoding.AppendEncode(nil, raw), nil
}
