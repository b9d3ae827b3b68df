package gate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
)

func TestWhatAPusherMakesLargeIsForgotten(t *testing.T) {
	r := newRecent(4*recentBytes, collectedAt.bytes)
	const each = 8 << 20
	for i := range 100 {
		r.put(fmt.Sprint(i), collectedAt{Collected: collect.Collected{Artifacts: []collect.Artifact{{Content: make([]byte, each)}}}})
	}
	if held := (len(r.new) + len(r.old)) * each; held > r.most {
		t.Errorf("%d bytes are held, want no more than %d", held, r.most)
	}
	if _, ok := r.get("99"); !ok {
		t.Error("the newest was forgotten")
	}
	if _, ok := r.get("0"); ok {
		t.Error("the oldest was kept")
	}
	// The same image again and again takes the place of itself.
	for range 100 {
		r.put("99", collectedAt{Collected: collect.Collected{Artifacts: []collect.Artifact{{Content: make([]byte, each)}}}})
	}
	if r.bytes > r.most/2 {
		t.Errorf("one entry counts for %d bytes", r.bytes)
	}
}

// TestAnnotationsAreCounted holds that what is large beside a signature is forgotten as
// the signature is.
func TestAnnotationsAreCounted(t *testing.T) {
	known := newRemembered(nop{})
	long := strings.Repeat("x", 1<<20)
	for i := range 200 {
		known.signatures.put(fmt.Sprint(i), collectedAt{Collected: collect.Collected{Artifacts: []collect.Artifact{{Annotations: map[string]string{"a": long}}}}})
	}
	if held := (len(known.signatures.new) + len(known.signatures.old)) << 20; held > known.signatures.most || held == 0 {
		t.Errorf("%d bytes are held, want some, and no more than %d", held, known.signatures.most)
	}
}

func TestWhatAnObjectMakesLargeIsForgotten(t *testing.T) {
	known := newRemembered(nop{})
	name := strings.Repeat("n", 1<<20)
	for i := range 100 {
		key := fmt.Sprint(i)
		known.facts.put(key, reading{Facts: bytecode.Facts{License: name}})
		known.evidence.put(key, signing.Evidence{Rejected: []signing.Rejection{{Reason: name}}})
		known.decisions.put(key, policies.Decision{Denied: []policies.Reason{{Message: name}}})
	}
	held := func(entries, most int) {
		t.Helper()
		if entries<<20 > most || entries == 0 {
			t.Errorf("%d MiB are held, want some, and no more than %d MiB", entries, most>>20)
		}
	}
	held(len(known.facts.new)+len(known.facts.old), known.facts.most)
	held(len(known.evidence.new)+len(known.evidence.old), known.evidence.most)
	held(len(known.decisions.new)+len(known.decisions.old), known.decisions.most)
	known.facts.put("huge", reading{Broken: strings.Repeat("n", recentBytes)})
	if _, ok := known.facts.get("huge"); ok {
		t.Error("what has no room is kept")
	}
}

func TestARefusalIsNoBook(t *testing.T) {
	r := &refusals{object: "app"}
	name := strings.Repeat("n", 1<<20)
	for range 100 {
		r.add("inspect/map", "spec.maps."+name, "use one of: "+name, "the object has no map %q", name)
	}
	if got := len(r.err().Error()); got > 256<<10 {
		t.Errorf("%d bytes are told", got)
	}
}
