package chainfit_test

import (
	"runtime"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/test/fixture/node"
)

// TestWorkGrowsWithPlaces admits, fits and plans for a node, and for one of four times the size: that is no more than
// about four times the memory, in whichever dimension the node grows, and whatever becomes of the applications.
func TestWorkGrowsWithPlaces(t *testing.T) {
	const small, factor, most = 60, 4, 6
	for sentence, size := range map[string]func(n int) node.Shape{
		"pods of one application":           func(n int) node.Shape { return node.Shape{Applications: 1, Pods: n} },
		"applications at one interface":     func(n int) node.Shape { return node.Shape{Applications: n, Pods: 1} },
		"applications in a pod each":        func(n int) node.Shape { return node.Shape{Applications: n, Pods: n, In: 1} },
		"applications in a pod of two each": func(n int) node.Shape { return node.Shape{Applications: n, Pods: n / 2, In: 1} },
		"pods of a few applications":        func(n int) node.Shape { return node.Shape{Applications: 4, Pods: n} },
	} {
		for hook, befores := range map[string][]string{plan.XDP: {"new", "running", "remembered", "half", "update", "unloaded"}, "tcx/ingress": {"half", "update"}} {
			for _, before := range befores {
				allocated := func(n int) uint64 {
					shape := size(n)
					shape.Hook, shape.Before = hook, before
					return allocatedFor(t, shape)
				}
				if less, more := allocated(small), allocated(small*factor); more > most*less {
					t.Errorf("%s, %s, %s: %d take %d bytes and %d take %d, %d times as many", sentence, hook, before, small, less, factor*small, more, more/less)
				}
			}
		}
	}
}

// allocatedFor is what it takes to admit, fit and plan for a node, in bytes.
func allocatedFor(t *testing.T, shape node.Shape) uint64 {
	t.Helper()
	r, fitter := shape.Crowd(t).Start(t).Begin(), newFitter()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r.Admission.Admit()
	fitter.Begin(r.Decisions, r.Admission, r.Objects, r.Loads).Fit()
	plan.Make(r.Decisions.Want, r.Decisions.Look.State())
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
