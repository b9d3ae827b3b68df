package signing_test

import (
	"testing"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/signing/collect"
)

// TestACopyRepeatsWhatItCopies has a signature or attestation copied, with its trusted time, without it, and timed anew: the
// one with the earliest time is needed, whatever comes first.
func TestACopyRepeatsWhatItCopies(t *testing.T) {
	a := newAuthority(t)
	signer := a.signer(t, "ci", func(k *v1alpha1.KeylessSigner) { k.InsecureIgnoreTlog = true })
	at := time.Now().Add(-time.Minute).Truncate(time.Second)
	for form, make := range forms {
		t.Run(form, func(t *testing.T) {
			i := a.certify(t, issuer, subject, at, false)
			bare, timed := make(t, a, i, thisImage, witness{}), make(t, a, i, thisImage, witness{at: at, stamped: true})
			later := make(t, a, i, thisImage, witness{at: at.Add(30 * time.Second), stamped: true})
			e := verify(t, trustOf(t, signer), collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{bare, later, timed, timed, bare}})
			if len(e.Counted) != 5 {
				t.Fatalf("counted %+v, rejected %+v", e.Counted, e.Rejected)
			}
			for n, counted := range e.Counted {
				needed := len(counted.Signatures)+len(counted.Attestations) > 0
				if counted.Artifact != n || needed != (n == 2 || n == 3) {
					t.Errorf("artifact %d of index %d: needed %t", n, counted.Artifact, needed)
				}
			}
		})
	}
}
