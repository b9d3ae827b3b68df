package intent

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// The PEM types of a seal's two halves, as openssl genpkey writes them.
const (
	privatePEM = "PRIVATE KEY"
	publicPEM  = "PUBLIC KEY"
)

// GenerateKey makes a sealing key and returns it as PKCS#8 in PEM.
func GenerateKey() ([]byte, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("make sealing key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make sealing key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: privatePEM, Bytes: der}), nil
}

// ParseKey reads what GenerateKey returned. Its errors never hold key bytes.
func ParseKey(data []byte) (*Sealer, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != privatePEM {
		return nil, errors.New("read sealing key: no PEM block of type " + privatePEM)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read sealing key: %w", err)
	}
	ed, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("read sealing key: want an ed25519 key, have %T", key)
	}
	return NewSealer(ed)
}

// MarshalPublic returns the half that agents trust, as PKIX in PEM.
func (s *Sealer) MarshalPublic() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(s.key.public)
	if err != nil {
		return nil, fmt.Errorf("write public sealing key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: publicPEM, Bytes: der}), nil
}

// ParseTrust reads one or more public keys, one PEM block each; several are
// trusted during a rotation.
func ParseTrust(data []byte) (*Trust, error) {
	var keys []ed25519.PublicKey
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read seal trust: %w", err)
		}
		ed, ok := key.(ed25519.PublicKey)
		if !ok {
			return nil, fmt.Errorf("read seal trust: want ed25519 keys, have %T", key)
		}
		keys = append(keys, ed)
	}
	return NewTrust(keys...)
}
