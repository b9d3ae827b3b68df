package gate

import (
	"fmt"
	"testing"

	"github.com/skep-dev/skep/signing"
)

func TestWhatAPusherMakesLargeIsForgotten(t *testing.T) {
	r := newRecent(collectedAt.bytes)
	const each = 8 << 20
	for i := range 100 {
		r.put(fmt.Sprint(i), collectedAt{Collected: signing.Collected{Artifacts: []signing.Artifact{{Content: make([]byte, each)}}}})
	}
	if held := (len(r.new) + len(r.old)) * each; held > recentBytes {
		t.Errorf("%d bytes are held, want no more than %d", held, recentBytes)
	}
	if _, ok := r.get("99"); !ok {
		t.Error("the newest was forgotten")
	}
	if _, ok := r.get("0"); ok {
		t.Error("the oldest was kept")
	}
	// The same image again and again takes the place of itself.
	for range 100 {
		r.put("99", collectedAt{Collected: signing.Collected{Artifacts: []signing.Artifact{{Content: make([]byte, each)}}}})
	}
	if r.bytes > recentBytes/2 {
		t.Errorf("one entry counts for %d bytes", r.bytes)
	}
}
