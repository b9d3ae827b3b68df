package nodemode

import (
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/cost"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	waits "github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/series"
)

// TestAHostMeasuresItsPrograms while it runs: its description and its metrics have what they cost. Without a clock, neither has.
func TestAHostMeasuresItsPrograms(t *testing.T) {
	need.Kernel(t)
	for _, isOn := range []bool{true, false} {
		s := newStage(t)
		s.define("app", s.push(first, "app:v1", "team-a"))
		var clock *cost.Clock
		if isOn {
			clock = cost.New(cost.Options{})
		}
		h := s.open(func(o *Options) { o.Cost = clock })
		stop := s.start(h)
		waits.True(t, "the program to be loaded", time.Minute, func() bool {
			return len(h.Status().Applications) == 1 && running(h.Status().Applications[0]) != 0
		})
		if isOn {
			waits.True(t, "the first window", time.Minute, func() bool { return clock.Measured() > 0 })
			// The first window may have been over before the program was loaded.
			if err := clock.Measure(t.Context(), func() {}); err != nil {
				t.Fatal(err)
			}
		}
		n, err := h.viewer.View(t.Context(), view.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		has := false
		for _, p := range n.Programs {
			has = has || p.Cost != nil
		}
		counted := false
		for name := range series.Of(t, h.metrics.registry) {
			counted = counted || strings.HasPrefix(name, "skep_program_windows_total")
		}
		if has != isOn || counted != isOn {
			t.Errorf("clock %v: the description has a cost: %v; the metrics count: %v", isOn, has, counted)
		}
		stop()
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
