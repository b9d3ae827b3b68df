package admission

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// The keys of the Secret; cert-manager's has the same.
const (
	keyAuthorities = "ca.crt"
	keyCertificate = "tls.crt"
	keyPrivate     = "tls.key"
)

const (
	// validity is how long a certificate holds, early how long before its end it
	// is renewed, and backdated how far clocks may be apart.
	validity  = 90 * 24 * time.Hour
	early     = 30 * 24 * time.Hour
	backdated = time.Hour
	// maxAuthorities bounds those that are trusted at one time.
	maxAuthorities = 3
)

// pair is what is stored: a certificate with its key, the authorities by which it
// and those before it are known, and the paths that came with them, the newest
// first.
type pair struct {
	certificate tls.Certificate
	bundle      []byte
	paths       []string
	issuedAt    time.Time
	renewAt     time.Time
	// pathsAt is since when the newest path is there; zero where the Secret does not
	// say, as one of an older version, and then it came with the certificate.
	pathsAt time.Time
}

// settled reports whether every replica and the API server had time to learn of it.
func (p pair) settled(now time.Time) bool { return !now.Before(p.issuedAt.Add(overlap)) }

// since is when the newest path came.
func (p pair) since() time.Time {
	if p.pathsAt.IsZero() {
		return p.issuedAt
	}
	return p.pathsAt
}

// called reports whether every replica had time to learn of the newest path, so that
// the API server may call it.
func (p pair) called(now time.Time) bool { return !now.Before(p.since().Add(overlap)) }

// served are the paths that are: those before the newest until the API server had
// time to call that.
func (p pair) served(now time.Time) []string {
	if now.Before(p.since().Add(2 * overlap)) {
		return p.paths
	}
	return p.paths[:min(len(p.paths), 1)]
}

// next is when there is something to do for it; leads says that this replica
// changes the path.
func (p pair) next(now time.Time, leads bool) time.Time {
	next := p.renewAt
	all := []time.Time{p.issuedAt.Add(overlap), p.issuedAt.Add(2 * overlap), p.since().Add(overlap), p.since().Add(2 * overlap)}
	if leads {
		all = append(all, p.since().Add(pathAge))
	}
	for _, at := range all {
		if now.Before(at) && at.Before(next) {
			next = at
		}
	}
	return next
}

// parse reads what is stored, and is an error unless it can be served.
func parse(data map[string][]byte) (pair, error) {
	certificate, err := tls.X509KeyPair(data[keyCertificate], data[keyPrivate])
	if err != nil {
		return pair{}, fmt.Errorf("read certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(data[keyAuthorities])
	leaf := certificate.Leaf
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: leaf.NotBefore}); err != nil {
		return pair{}, fmt.Errorf("verify certificate: %w", err)
	}
	paths, err := parsePaths(data[keyPaths])
	pathsAt, _ := time.Parse(time.RFC3339, string(data[keyPathsAt]))
	return pair{
		pathsAt:     pathsAt,
		certificate: certificate, bundle: data[keyAuthorities], paths: paths, issuedAt: leaf.NotBefore.Add(backdated), renewAt: leaf.NotAfter.Add(-early),
	}, err
}

// covers reports whether it can be served under every name.
func (p pair) covers(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return p.certificate.Leaf.VerifyHostname(name) != nil })
}

// issue makes a certificate by an authority of its own, whose key is thrown
// away: nobody can make another by it. before are authorities that are trusted
// as long as they hold.
func issue(now time.Time, names []string, before []byte) (map[string][]byte, error) {
	authority, authorityKey, err := template(now, "skep-webhook authority")
	if err != nil {
		return nil, err
	}
	authority.IsCA, authority.BasicConstraintsValid, authority.MaxPathLenZero = true, true, true
	authority.KeyUsage = x509.KeyUsageCertSign
	root, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return nil, fmt.Errorf("make authority: %w", err)
	}
	leaf, key, err := template(now, "skep-webhook")
	if err != nil {
		return nil, err
	}
	leaf.KeyUsage, leaf.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, name)
		}
	}
	signed, err := x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), authorityKey)
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write key: %w", err)
	}
	return map[string][]byte{
		keyAuthorities: bundle(now, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root}), before),
		keyCertificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}),
		keyPrivate:     pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}

// template is a certificate with a fresh key.
func template(now time.Time, name string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, errors.Join(errors.New("make serial number"), err)
	}
	// A subject of its own keeps authorities of the same bundle apart.
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: fmt.Sprintf("%s %x", name, serial.Bytes()[:4])},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(validity),
	}, key, nil
}

// bundle is an authority and those before it that still hold, the newest first.
func bundle(now time.Time, newest, before []byte) []byte {
	all := bytes.Clone(newest)
	count := 1
	for block, rest := pem.Decode(before); block != nil && count < maxAuthorities; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		one := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})
		if err != nil || now.After(c.NotAfter) || bytes.Contains(all, one) {
			continue
		}
		all = append(all, one...)
		count++
	}
	return all
}
