package signing

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/cryptoutils/goodkey"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"
)

// zeroTime as a limit means none.
var zeroTime time.Time

// fingerprint is the SHA-256 of a verifier's public key as PKIX, in hex.
func fingerprint(v signature.Verifier) (string, error) {
	public, err := v.PublicKey()
	if err != nil {
		return "", fmt.Errorf("read public key: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("encode public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

// parsePublicKey returns the ways signatures of one key are made: most keys
// have one. Ed25519 is used both plain and prehashed by different versions of
// cosign, and larger curves both with their own hash and with SHA-256.
func parsePublicKey(text string) ([]signature.Verifier, error) {
	const fix = "put the contents of cosign.pub there"
	if strings.Contains(text, "PRIVATE KEY") {
		return nil, errors.New("spec.key.publicKey holds a private key, which is no secret any more: make a new pair and put the public half there")
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil {
		return nil, fmt.Errorf("spec.key.publicKey is not PEM: %s", fix)
	}
	if strings.TrimSpace(string(rest)) != "" {
		return nil, errors.New("spec.key.publicKey holds more than one key: make a signer of each")
	}
	public, err := cryptoutils.UnmarshalPEMToPublicKey([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("spec.key.publicKey does not parse: %s: %w", fix, err)
	}
	if err := goodkey.ValidatePubKey(public); err != nil {
		return nil, fmt.Errorf("spec.key.publicKey is too weak or of an unknown kind: use ECDSA P-256: %w", err)
	}
	standard, err := signature.LoadDefaultVerifier(public, options.WithED25519ph())
	if err != nil {
		return nil, fmt.Errorf("spec.key.publicKey cannot be used: use ECDSA P-256: %w", err)
	}
	verifiers := []signature.Verifier{standard}
	switch k := public.(type) {
	case ed25519.PublicKey:
		plain, err := signature.LoadED25519Verifier(k)
		if err != nil {
			return nil, fmt.Errorf("load plain verifier: %w", err)
		}
		verifiers = append(verifiers, plain)
	case *ecdsa.PublicKey:
		if k.Curve.Params().BitSize > 256 {
			short, err := signature.LoadECDSAVerifier(k, crypto.SHA256)
			if err != nil {
				return nil, fmt.Errorf("load SHA-256 verifier: %w", err)
			}
			verifiers = append(verifiers, short)
		}
	}
	return verifiers, nil
}
