package sign

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/cryptoutils/goodkey"
	"github.com/sigstore/sigstore/pkg/signature"
)

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
		return nil, fmt.Errorf("parse private key: PEM block %q is not a private key: give the file that skep key generate or cosign generate-key-pair wrote",
			block.Type)
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
