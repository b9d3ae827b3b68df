package gate_test

import (
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
)

// TestABrokenDefinitionIsNotUnloadedForWhatItNoLongerSays breaks the definition
// of what runs, under policies that unload.
func TestABrokenDefinitionIsNotUnloadedForWhatItNoLongerSays(t *testing.T) {
	for name, c := range map[string]struct {
		rego string
		want gate.Move
	}{
		"a label is asked for, which nobody can read": {"deny contains \"no owner\" if not input.application.metadata.labels.owner", gate.MoveKeep},
		"the bytecode is refused":                     {"deny contains \"counts\" if input.bytecode.programs[_].name == \"count_packets\"", gate.MoveBury},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ref := w.push("xdp_count", "v1")
			w.sign(ref, "team-a")
			judge := w.judge()
			runs := sealed(t, mustJudge(t, judge, app(ref, "count_packets", onEth0())), gate.Stamp{UID: "u", Serial: 7})
			unloads := rego(c.rego)
			unloads.Spec.Running = v1alpha1.RunningUnload
			judge.Repolicy(w.policy(unloads))
			s := gate.Standing{Live: &runs, Hidden: true}
			s.Held = judge.Hold(t.Context(), s)
			if move, why := s.Settle(nil, false); move != c.want {
				t.Errorf("Settle = %s (%s), want %s", move, why, c.want)
			}
		})
	}
}
