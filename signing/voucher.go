package signing

import (
	"crypto/sha256"
	"encoding/json"
	"time"
)

// vouchers are the artifacts that are needed of those that count: for all that a policy sees
// of a signature or an attestation, the one with the earliest trusted time.
type vouchers map[[sha256.Size]byte]voucher

// voucher is an artifact by its index, and its trusted time.
type voucher struct {
	artifact int
	time     time.Time
}

// note takes in what one artifact vouches for.
func (v vouchers) note(artifact int, signatures []Signature, attestations []Attestation) {
	for _, s := range signatures {
		at := s.Time
		s.Time = time.Time{}
		v.take(s, voucher{artifact, at})
	}
	for _, a := range attestations {
		at := a.Time
		a.Time = time.Time{}
		v.take(a, voucher{artifact, at})
	}
}

// take prefers what has a trusted time, then what has an earlier one, then what came first.
func (v vouchers) take(what any, by voucher) {
	text, err := json.Marshal(what)
	if err != nil {
		return
	}
	key := sha256.Sum256(text)
	if before, known := v[key]; !known || !by.time.IsZero() && (before.time.IsZero() || by.time.Before(before.time)) {
		v[key] = by
	}
}

// have reports whether an artifact is needed.
func (v vouchers) have(artifact int) bool {
	for _, by := range v {
		if by.artifact == artifact {
			return true
		}
	}
	return false
}
