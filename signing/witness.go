package signing

import (
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

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
	// Cosign stumbles over some timestamps (v2.6.5 takes the first of none), so that
	// is one that says nothing.
	_ = guarded(func() error {
		stamp, err := cosign.VerifyRFC3161Timestamp(s, &options)
		if err == nil && stamp != nil {
			w.stamped = w.at(stamp.Time, certificate)
		}
		return err
	})
	return w, nil
}
