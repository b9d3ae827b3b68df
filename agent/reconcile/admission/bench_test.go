package admission_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/test/fixture/node"
)

// BenchmarkAdmit admits applications of one namespace, about as many as it may have on a node, and has the node
// remember what runs. It counts the time of all processors.
func BenchmarkAdmit(b *testing.B) {
	for _, size := range []struct{ applications, pods int }{{72, 110}, {32, 250}, {4, 2000}, {8000, 1}} {
		for _, c := range []struct{ hook, before string }{
			{"tcx/ingress", "new"}, {"tcx/ingress", "running"}, {"tcx/ingress", "remembered"}, {"tcx/ingress", "half"},
			{"tc/ingress", "new"}, {plan.XDP, "new"}, {plan.XDP, "running"}, {plan.XDP, "remembered"}, {plan.XDP, "half"}, {"cgroup_skb/egress", "unlimited"},
		} {
			shape := node.Shape{Applications: size.applications, Pods: size.pods, Hook: c.hook, Before: c.before}
			b.Run(shape.String(), func(b *testing.B) {
				n := shape.Crowd(b)
				var admitting, remembering time.Duration
				for b.Loop() {
					b.StopTimer()
					r := n.Start(b).Begin()
					runtime.GC()
					b.StartTimer()
					began := node.Busy(b)
					r.Admission.Admit()
					admitted := node.Busy(b)
					r.Admission.Remember()
					admitting, remembering = admitting+admitted-began, remembering+node.Busy(b)-admitted
				}
				b.ReportMetric(float64(admitting.Microseconds())/1000/float64(b.N), "admit-CPU-ms/op")
				b.ReportMetric(float64(remembering.Microseconds())/1000/float64(b.N), "remember-CPU-ms/op")
			})
		}
	}
}
