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

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/cryptoutils/goodkey"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"
)

// zeroTime as a limit means none.
var zeroTime time.Time

// GenerateKey makes an ECDSA P-256 key pair in cosign's format: private is PEM,
// encrypted with password (scrypt and secretbox), public is PEM in PKIX form.
// Both work with cosign itself. An empty password is cosign's too.
func GenerateKey(password []byte) (private, public []byte, err error) {
	keys, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return password, nil })
	if err != nil {
		return nil, nil, fmt.Errorf("generate key pair: %w", err)
	}
	return keys.PrivateBytes, keys.PublicBytes, nil
}

// PrivateKey signs. It never shows what it holds.
type PrivateKey struct {
	signer signature.SignerVerifier
	public crypto.PublicKey
}

// ParsePrivateKey reads a private key: cosign's encrypted PEM, or plain PEM of
// an EC, RSA or Ed25519 key (SEC 1, PKCS #1, PKCS #8), where password is not
// used. The error never holds a part of the key or the password.
func ParsePrivateKey(data, password []byte) (*PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("parse private key: it is not PEM: give the file that skep key generate or cosign generate-key-pair wrote")
	}
	switch block.Type {
	case cosign.CosignPrivateKeyPemType, cosign.SigstorePrivateKeyPemType:
		plain, err := encrypted.Decrypt(block.Bytes, password)
		if err != nil {
			return nil, errors.New("parse private key: it cannot be decrypted: check the password and that the file is whole")
		}
		block = &pem.Block{Type: cosign.PrivateKeyPemType, Bytes: plain}
	}
	key, err := parsePlainKey(block)
	if err != nil {
		return nil, err
	}
	// With SHA-256 for every curve, and with Ed25519 as it is: cosign verify of both
	// generations takes nothing else, unless it is told to.
	sv, err := signature.LoadSignerVerifier(key, crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("parse private key: the key is too weak or of an unknown kind: use ECDSA P-256: %w", err)
	}
	public, err := sv.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("parse private key: derive public key: %w", err)
	}
	if err := goodkey.ValidatePubKey(public); err != nil {
		return nil, fmt.Errorf("parse private key: the key is too weak or of an unknown kind: use ECDSA P-256: %w", err)
	}
	return &PrivateKey{signer: sv, public: public}, nil
}

func parsePlainKey(block *pem.Block) (crypto.PrivateKey, error) {
	var key crypto.PrivateKey
	var err error
	switch block.Type {
	case cosign.ECPrivateKeyPemType:
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case cosign.RSAPrivateKeyPemType:
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case cosign.PrivateKeyPemType:
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("parse private key: PEM block %q is not a private key: give the file that skep key generate or cosign generate-key-pair wrote", block.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("parse private key: PEM block %q holds no such key: give the file whole", block.Type)
	}
	return key, nil
}

// Public returns the public half as PEM, as a BpfSigner takes it.
func (k *PrivateKey) Public() ([]byte, error) {
	b, err := cryptoutils.MarshalPublicKeyToPEM(k.public)
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	return b, nil
}

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
