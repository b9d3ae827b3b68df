package policies

import (
	"fmt"
	"strings"
	"testing"
)

// TestProofsAreBoundedByBytes has somebody try one broken policy after another.
func TestProofsAreBoundedByBytes(t *testing.T) {
	var kept proofs
	kept.put("good", proof{Denies: true})
	one := proof{Errors: []*CompileError{{Message: strings.Repeat("x", 64<<10)}}}
	for i := range 3 * maxErrorBytes / one.bytes() {
		kept.put(fmt.Sprint(i), one)
	}
	sum := 0
	for _, p := range kept.broken {
		sum += p.bytes()
	}
	if sum > maxErrorBytes || sum != kept.bytes || sum < maxErrorBytes/2 {
		t.Errorf("%d bytes are kept, counted as %d", sum, kept.bytes)
	}
	for i := range 3 * maxProofs {
		kept.put(fmt.Sprint(i), proof{Errors: []*CompileError{{Message: "x"}}})
	}
	if len(kept.broken) > maxProofs {
		t.Errorf("%d are kept", len(kept.broken))
	}
	if _, known := kept.get("good"); !known {
		t.Error("broken ones took the place of a good one")
	}
	for i := range 3 * maxProofs {
		kept.put(fmt.Sprint(i), proof{})
	}
	if len(kept.good) > maxProofs {
		t.Errorf("%d good ones are kept", len(kept.good))
	}
}
