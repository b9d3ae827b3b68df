package gate_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
)

// TestWhatNoKernelLoadsIsDenied: programs that every node has to load, and their maps. What the
// definition does not list, or what a node may leave out, denies nothing.
func TestWhatNoKernelLoadsIsDenied(t *testing.T) {
	w := newWorld(t)
	ref, evaluator := w.signed("tcx_never"), w.evaluator()
	on := v1alpha1.Attachment{Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}}
	program := func(name string, optional bool) v1alpha1.Program {
		return v1alpha1.Program{Name: name, Attach: []v1alpha1.Attachment{on}, Optional: optional}
	}
	for sentence, c := range map[string]struct {
		programs []v1alpha1.Program
		maps     map[string]v1alpha1.Map
		denied   []string
	}{
		"nothing that never loads is listed": {[]v1alpha1.Program{program("counted", false)}, nil, nil},
		"a helper of another type of programs": {[]v1alpha1.Program{program("counted", false), program("adjusted", false)}, nil, []string{
			`inspect/kernel at spec.programs[1]: no kernel loads program adjusted: it calls bpf_xdp_adjust_head, which programs of type XDP alone have`,
		}},
		"a map that lacks a flag": {[]v1alpha1.Program{program("routed", false)}, nil, []string{
			"inspect/kernel at spec.maps.routes: no kernel makes map routes of type LPMTrie: it lacks the flag BPF_F_NO_PREALLOC",
		}},
		"a map of another application, which has the flag or none": {[]v1alpha1.Program{program("routed", false)},
			map[string]v1alpha1.Map{"routes": {From: &v1alpha1.MapSource{Application: "other", Map: "routes"}}}, nil},
		"programs that a node may leave out": {[]v1alpha1.Program{program("counted", false), program("adjusted", true), program("routed", true)}, nil, nil},
	} {
		t.Run(sentence, func(t *testing.T) {
			a := app(ref, "")
			a.Spec.Programs, a.Spec.Maps = c.programs, c.maps
			v := mustEvaluate(t, evaluator, a)
			denied := v.Decision().Denied
			if len(denied) != len(c.denied) {
				t.Fatalf("denied: %v", denied)
			}
			for i, want := range c.denied {
				if got := gate.Sentence(denied[i]); !strings.Contains(got, want) || denied[i].Fix == "" {
					t.Errorf("denied: %s, want %s", got, want)
				}
			}
		})
	}
}
