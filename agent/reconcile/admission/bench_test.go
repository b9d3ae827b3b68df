package admission_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/history"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// BenchmarkAdmit admits applications of one namespace with a program in each of many pods, about as
// many as a namespace may have:
//
//	new        none ran before
//	running    all run
//	remembered all ran before the node was started again
//	half       each runs in half of the pods, and where the other half of them fill the place it is
//	           left out
//	unlimited  none ran before, on a hook without limits
//
// and has the node remember what runs.
func BenchmarkAdmit(b *testing.B) {
	for _, size := range []struct{ applications, pods int }{{72, 110}, {32, 250}, {4, 2000}} {
		for _, c := range []struct{ hook, before string }{
			{"tcx/ingress", "new"}, {"tcx/ingress", "running"}, {"tcx/ingress", "remembered"}, {"tcx/ingress", "half"},
			{"tc/ingress", "new"}, {plan.XDP, "new"}, {plan.XDP, "running"}, {plan.XDP, "remembered"}, {plan.XDP, "half"}, {"cgroup_skb/egress", "unlimited"},
		} {
			b.Run(fmt.Sprintf("%dx%d/%s/%s", size.applications, size.pods, c.hook, c.before), func(b *testing.B) {
				w := crowd(b, size.applications, size.pods, c.hook, c.before)
				s := w.set()
				var admitting, remembering time.Duration
				for b.Loop() {
					b.StopTimer()
					round, _ := w.begin(w.open(b, s), s)
					b.StartTimer()
					began := time.Now()
					round.Admit()
					admitted := time.Now()
					round.Remember()
					admitting, remembering = admitting+admitted.Sub(began), remembering+time.Since(admitted)
				}
				b.ReportMetric(float64(admitting.Microseconds())/1000/float64(b.N), "admit-ms/op")
				b.ReportMetric(float64(remembering.Microseconds())/1000/float64(b.N), "remember-ms/op")
			})
		}
	}
}

// crowd is a node with applications of one namespace in pods, see BenchmarkAdmit.
func crowd(tb testing.TB, applications, pods int, hook, before string) *world {
	tb.Helper()
	w := &world{now: time.UnixMilli(1 << 40), sharePercent: 50, records: map[history.At]history.Record{}}
	for pod := range pods {
		w.state.Interfaces = append(w.state.Interfaces, plan.Interface{Device: plan.Device{NetnsID: uint64(pod + 1), Index: 2}, Name: "eth0",
			In: fmt.Sprintf("pod team-a/web-%d", pod)})
	}
	key := seals.New(tb)
	w.state.Chains = make([]plan.Chain, 0, pods)
	for i := range applications {
		o := key.Open(tb, intent.Payload{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: fmt.Sprintf("app-%03d", i)},
			UID: fmt.Sprintf("6c1a9f4e-6a4b-4c0e-9a53-%012d", i), Serial: 1, ObjectDigest: "sha256:object",
			Programs: []v1alpha1.Program{{Name: "count", Attach: []v1alpha1.Attachment{{Hook: hook}}}}})
		one := &application{known: version.Known{Newest: o}, attachments: map[int64][]plan.Attachment{}}
		for pod, at := range w.state.Interfaces {
			a := plan.Attachment{Application: o.Payload().Application, Program: "count", Instance: plan.Instance("count", hook, ""), Hook: hook,
				Target: plan.Target{Ifindex: at.Device.Index, Interface: at.Name, NetnsID: at.Device.NetnsID, In: at.In}}
			if before == "unlimited" {
				a.Target = plan.Target{Cgroup: fmt.Sprintf("/pods/web-%d", pod), CgroupID: uint64(pod + 1), In: at.In}
			}
			one.attachments[1] = append(one.attachments[1], a)
			if half := before == "half" && (i+pod)%2 == 0; before == "running" || before == "remembered" || half {
				w.remember(o, a, before != "remembered")
			}
		}
		w.applications = append(w.applications, one)
	}
	return w
}

// remember has an attachment of a version have run, and run now.
func (w *world) remember(o intent.Opened, a plan.Attachment, now bool) {
	uid := o.Payload().UID
	record := history.Record{UID: uid, Hook: a.Hook, Interface: a.Target.String(), Revision: o.Revision(), Programs: []string{a.Program},
		Need: plan.Need{Programs: 1}}
	if a.Hook == plan.XDP {
		record.Need = plan.Need{Programs: 1, Functions: 4, Maps: 1}
	}
	w.records[record.At()] = record
	switch {
	case !now:
	case a.Hook != plan.XDP:
		w.state.Links = append(w.state.Links, plan.Link{UID: uid, Attachment: a, Revision: o.Revision()})
	default:
		device := a.Target.Device()
		i := len(w.state.Chains) - 1
		for ; i >= 0 && w.state.Chains[i].Device != device; i-- {
			continue
		}
		if i < 0 {
			w.state.Chains, i = append(w.state.Chains, plan.Chain{Device: device, Interface: a.Target.String()}), len(w.state.Chains)
		}
		m := plan.Member{UID: uid, Identity: a.Application, Revision: o.Revision(), Program: a.Program}
		w.state.Chains[i].Members = append(w.state.Chains[i].Members, m)
	}
}
