package plan_test

import (
	"fmt"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// BenchmarkMake plans for applications with a program in each of many pods, about as many as a
// namespace may have: where nothing runs, where all run, and where all are to go.
func BenchmarkMake(b *testing.B) {
	for _, size := range []struct{ applications, pods int }{{72, 110}, {32, 250}, {4, 2000}} {
		for _, hook := range []string{"tcx/ingress", plan.XDP, "cgroup_skb/egress"} {
			want, have := crowd(size.applications, size.pods, hook)
			gone := plan.Want{}
			for _, app := range want.Applications {
				gone.Gone = append(gone.Gone, app.UID)
			}
			for before, c := range map[string]struct {
				want plan.Want
				have plan.State
			}{"new": {want, plan.State{Interfaces: have.Interfaces}}, "running": {want, have}, "gone": {gone, have}} {
				b.Run(fmt.Sprintf("%dx%d/%s/%s", size.applications, size.pods, hook, before), func(b *testing.B) {
					for b.Loop() {
						plan.Make(c.want, c.have)
					}
				})
			}
		}
	}
}

// crowd are applications that want a program in each pod, and run there.
func crowd(applications, pods int, hook string) (plan.Want, plan.State) {
	var want plan.Want
	have := plan.State{Revisions: map[string][]string{}}
	chains := make([]plan.Chain, pods)
	for pod := range pods {
		i := plan.Interface{Device: plan.Device{NetnsID: uint64(pod + 1), Index: 2}, Name: "eth0", In: fmt.Sprintf("pod team-a/web-%d", pod)}
		have.Interfaces, chains[pod] = append(have.Interfaces, i), plan.Chain{Device: i.Device, Interface: i.Label()}
	}
	for i := range applications {
		app := plan.Application{UID: fmt.Sprintf("6c1a9f4e-6a4b-4c0e-9a53-%012d", i), Revision: "r",
			Identity: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: fmt.Sprintf("app-%03d", i)}}
		have.Revisions[app.UID] = []string{app.Revision}
		for pod, at := range have.Interfaces {
			a := plan.Attachment{Application: app.Identity, Program: "count", Instance: plan.Instance("count", hook, ""), Hook: hook, Priority: 500,
				Target: plan.Target{Ifindex: at.Device.Index, Interface: at.Name, NetnsID: at.Device.NetnsID, In: at.In}}
			if hook == "cgroup_skb/egress" {
				a.Target = plan.Target{Cgroup: fmt.Sprintf("/pods/web-%d", pod), CgroupID: uint64(pod + 1), In: at.In}
			}
			app.Attachments = append(app.Attachments, a)
			if hook == plan.XDP {
				m := plan.Member{UID: app.UID, Identity: app.Identity, Revision: app.Revision, Program: a.Program, Priority: a.Priority}
				chains[pod].Members = append(chains[pod].Members, m)
			} else {
				have.Links = append(have.Links, plan.Link{UID: app.UID, Attachment: a, Revision: app.Revision, Position: i})
			}
		}
		want.Applications = append(want.Applications, app)
	}
	if hook == plan.XDP {
		have.Chains = chains
	}
	return want, have
}
