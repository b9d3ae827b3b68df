package application

import (
	"fmt"
	"testing"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestReportsAreGathered(t *testing.T) {
	id := v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}
	for name, c := range map[string]struct {
		// at is when reports come, want when the reconciles are due that they ask for.
		at, want []time.Duration
	}{
		"the first report is read at once":        {[]time.Duration{0}, []time.Duration{moment}},
		"reports that come with it are read then": {[]time.Duration{0, moment / 2}, []time.Duration{moment, moment}},
		"those after it are read together": {
			[]time.Duration{0, 2 * moment, reportSpacing / 2, reportSpacing - 1},
			[]time.Duration{moment, moment + reportSpacing, moment + reportSpacing, moment + reportSpacing},
		},
		"reports without end are read once a settle": {
			[]time.Duration{0, reportSpacing / 2, reportSpacing + 2*moment, 2*reportSpacing + 3*moment},
			[]time.Duration{moment, moment + reportSpacing, moment + 2*reportSpacing, moment + 3*reportSpacing},
		},
		"after silence, at once again": {[]time.Duration{0, 3 * reportSpacing}, []time.Duration{moment, 3*reportSpacing + moment}},
	} {
		t.Run(name, func(t *testing.T) {
			var g reportDebounce
			start := time.Now()
			for i, at := range c.at {
				if due := at + g.delay(id, start.Add(at)); due != c.want[i] {
					t.Errorf("the report after %s is read after %s, want %s", at, due, c.want[i])
				}
			}
		})
	}
}

func TestAReportOfOneApplicationDelaysNoOther(t *testing.T) {
	var g reportDebounce
	now := time.Now()
	for i := range 3 * minGathered {
		if wait := g.delay(v1alpha1.Identity{Name: fmt.Sprint(i)}, now); wait != moment {
			t.Fatalf("application %d waits %s", i, wait)
		}
	}
	g.delay(v1alpha1.Identity{Name: "later"}, now.Add(time.Minute))
	for i := range 3 * minGathered {
		g.delay(v1alpha1.Identity{Name: fmt.Sprint("more ", i)}, now.Add(time.Minute))
	}
	if len(g.due) > 6*minGathered {
		t.Errorf("%d applications are remembered, most of them old", len(g.due))
	}
}
