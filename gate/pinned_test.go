package gate_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
)

// TestAMapThatTheObjectPinsByNameIsWarnedOf: unless the definition says with whom it is shared.
func TestAMapThatTheObjectPinsByNameIsWarnedOf(t *testing.T) {
	w := newWorld(t)
	ref, evaluator := w.signed("xdp_pinned"), w.evaluator()
	for sentence, c := range map[string]struct {
		said v1alpha1.Map
		warn bool
	}{
		"nothing is said":                {v1alpha1.Map{}, true},
		"it is shared":                   {v1alpha1.Map{SharedWith: []string{"other"}}, false},
		"it is of another application":   {v1alpha1.Map{From: &v1alpha1.MapSource{Application: "other", Map: "shared"}}, false},
		"nothing is said of its sharing": {v1alpha1.Map{OnUpdate: v1alpha1.MapReset}, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			a := app(ref, "xdp_pinned", onEth0())
			name := pinnedMap(t, mustEvaluate(t, evaluator, a))
			a.Spec.Maps = map[string]v1alpha1.Map{name: c.said}
			v := mustEvaluate(t, evaluator, a)
			if !v.Allowed() {
				t.Fatalf("denied: %v", v.Decision().Denied)
			}
			var said []string
			for _, r := range v.Decision().Warnings {
				said = append(said, gate.Sentence(r))
			}
			want := "maps/pinned at spec.maps." + name + ": the object pins map " + name + " by its name (LIBBPF_PIN_BY_NAME)"
			if all := strings.Join(said, "\n"); strings.Contains(all, want) != c.warn || c.warn && !strings.Contains(all, ".sharedWith") {
				t.Errorf("it warns of %q", all)
			}
		})
	}
}

// pinnedMap is the map of an object that asks to be pinned.
func pinnedMap(t *testing.T, v gate.Verdict) string {
	t.Helper()
	for _, m := range v.Facts().Maps {
		if m.Pinned {
			return m.Name
		}
	}
	t.Fatal("no map of the object is pinned")
	return ""
}
