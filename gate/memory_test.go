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

// within fails unless a memory holds something, and no more than it may.
func within[V any](t *testing.T, what string, held *counted[V], most int) {
	t.Helper()
	if entries, bytes := held.Held(); entries == 0 || entries<<20 > most || bytes > most {
		t.Errorf("%s: %d entries of a MiB, counted as %d bytes, are held; want some, and no more than %d bytes", what, entries, bytes, most)
	}
}

func TestWhatAPusherMakesLargeIsForgotten(t *testing.T) {
	known := newRemembered(nop{})
	large := collectedAt{Collected: collect.Collected{Artifacts: []collect.Artifact{{Content: make([]byte, 8<<20)}}}}
	for i := range 100 {
		known.signatures.Put(fmt.Sprint(i), large)
	}
	within(t, "signatures", known.signatures, 4*recentBytes)
	if _, ok := known.signatures.Get("99"); !ok {
		t.Error("the newest was forgotten")
	}
	if _, ok := known.signatures.Get("0"); ok {
		t.Error("the oldest was kept")
	}
}

// TestAnnotationsAreCounted holds that what is large beside a signature is forgotten as
// the signature is.
func TestAnnotationsAreCounted(t *testing.T) {
	known := newRemembered(nop{})
	long := strings.Repeat("x", 1<<20)
	for i := range 200 {
		known.signatures.Put(fmt.Sprint(i), collectedAt{Collected: collect.Collected{Artifacts: []collect.Artifact{{Annotations: map[string]string{"a": long}}}}})
	}
	within(t, "signatures", known.signatures, 4*recentBytes)
}

func TestWhatAnObjectMakesLargeIsForgotten(t *testing.T) {
	known := newRemembered(nop{})
	name := strings.Repeat("n", 1<<20)
	for i := range 100 {
		key := fmt.Sprint(i)
		known.facts.Put(key, reading{Facts: bytecode.Facts{License: name}})
		known.evidence.Put(key, signing.Evidence{Rejected: []signing.Rejection{{Reason: name}}})
		known.decisions.Put(key, policies.Decision{Denied: []policies.Reason{{Message: name}}})
	}
	within(t, "facts", known.facts, recentBytes)
	within(t, "evidence", known.evidence, 2*recentBytes)
	within(t, "decisions", known.decisions, recentBytes)
	known.facts.Put("huge", reading{Broken: strings.Repeat("n", recentBytes)})
	if _, ok := known.facts.Get("huge"); ok {
		t.Error("what has no room is kept")
	}
}

func TestARefusalIsNoBook(t *testing.T) {
	r := &denials{object: "app"}
	name := strings.Repeat("n", 1<<20)
	for range 100 {
		r.add("inspect/map", "spec.maps."+name, "use one of: "+name, "the object has no map %q", name)
	}
	if got := len(r.err().Error()); got > 256<<10 {
		t.Errorf("%d bytes are told", got)
	}
}
