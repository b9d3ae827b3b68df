package signing

import (
	"crypto/sha256"
	"encoding/json"
	"time"
)

// vouchers are those needed of what counts: for all that a policy sees of a signature or an
// attestation, the one with the earliest trusted time.
type vouchers map[[sha256.Size]byte]voucher

// voucher is an index of Evidence.Counted, and its trusted time.
type voucher struct {
	counted int
	time    time.Time
}

// note takes in what counts: a copy of a signature or attestation, whose time is at. What has a
// trusted time is preferred, then what has an earlier one, then what came first.
func (v vouchers) note(counted int, at *time.Time, what any) {
	by := voucher{counted, *at}
	*at = time.Time{}
	text, err := json.Marshal(what)
	key := sha256.Sum256(text)
	before, known := v[key]
	if err == nil && (!known || !by.time.IsZero() && (before.time.IsZero() || by.time.Before(before.time))) {
		v[key] = by
	}
}
