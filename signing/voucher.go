package signing

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"time"
)

// vouchers are those needed of what counts: for all that a policy sees of a signature or an
// attestation, the ones with the earliest trusted time.
type vouchers map[[sha256.Size]byte]*voucher

// voucher names one signature or attestation, the indexes of Evidence.Counted that vouch for it
// as early as any, and their trusted time.
type voucher struct {
	name    int
	counted []int
	time    time.Time
}

// note takes in what counts: a copy of a signature or attestation, whose time is at. What has a
// trusted time is preferred, then what has an earlier one.
func (v vouchers) note(counted int, at *time.Time, what any) {
	by := *at
	*at = time.Time{}
	text, err := json.Marshal(what)
	if err != nil {
		return
	}
	key := sha256.Sum256(text)
	known := v[key]
	switch {
	case known == nil:
		v[key] = &voucher{name: len(v), counted: []int{counted}, time: by}
	case by.Equal(known.time):
		known.counted = append(known.counted, counted)
	case !by.IsZero() && (known.time.IsZero() || by.Before(known.time)):
		known.counted, known.time = []int{counted}, by
	}
}

// tell says of what counts which vouchers it has.
func (v vouchers) tell(counted []Counted, of func(*Counted) *[]int) {
	for _, one := range v {
		for _, i := range one.counted {
			names := of(&counted[i])
			*names = append(*names, one.name)
		}
	}
	for i := range counted {
		slices.Sort(*of(&counted[i]))
	}
}
