package chainfit_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/test/fixture/node"
)

// shapes are those of nodes with as many places as the applications of one namespace may have.
func shapes() []node.Shape {
	var all []node.Shape
	for _, size := range []node.Shape{
		{Applications: 72, Pods: 110},
		{Applications: 32, Pods: 250},
		{Applications: 250, Pods: 32},
		{Applications: 4, Pods: 2000},
		{Applications: 1, Pods: 8000},
		{Applications: 8000, Pods: 1},
		{Applications: 8000, Pods: 8000, In: 1},
		{Applications: 8000, Pods: 4000, In: 1},
	} {
		for _, before := range []string{"new", "running", "remembered", "half", "update", "unloaded"} {
			size.Hook, size.Before = plan.XDP, before
			all = append(all, size)
		}
		size.Hook, size.Before = "tcx/ingress", "half"
		all = append(all, size)
	}
	return all
}

// BenchmarkFit admits, fits chains and plans, where no chain is loaded yet. It counts the time of all processors.
func BenchmarkFit(b *testing.B) {
	for _, shape := range shapes() {
		b.Run(shape.String(), func(b *testing.B) {
			n, fitter := shape.Crowd(b), newFitter()
			var steps [3]time.Duration
			for b.Loop() {
				b.StopTimer()
				a := n.Start(b)
				r := a.Begin()
				runtime.GC()
				b.StartTimer()
				began := node.Busy(b)
				for i, step := range []func(){
					r.Admission.Admit,
					fitter.Begin(r.Decisions, r.Admission, r.Objects, r.Loads).Fit,
					func() { plan.Make(r.Decisions.Want, r.Decisions.Look.State()) },
				} {
					step()
					ended := node.Busy(b)
					steps[i], began = steps[i]+ended-began, ended
				}
			}
			for i, unit := range []string{"admit-CPU-ms/op", "fit-CPU-ms/op", "plan-CPU-ms/op"} {
				b.ReportMetric(float64(steps[i].Microseconds())/1000/float64(b.N), unit)
			}
			b.ReportMetric(float64((steps[0]+steps[1]+steps[2]).Microseconds())/1000/float64(b.N), "CPU-ms/op")
		})
	}
}
