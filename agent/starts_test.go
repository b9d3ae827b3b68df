package agent_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// announcing is a runtimeOf that announces its containers before they start.
type announcing struct {
	*world.Runtime
	containers.Starts
}

// AnnounceTo implements containers.Announcer.
func (r *announcing) AnnounceTo(s containers.Starts) { r.Starts = s }

// announceTo starts an agent that looks at nothing by itself: it is told when containers start.
func announceTo(w *world.World, r *announcing, change func(*agent.Options)) *agent.Agent {
	w.T.Helper()
	o := w.Options()
	o.SweepInterval = time.Hour
	o.Containers = func(func(...containers.Pod)) (containers.Source, error) { return r, nil }
	if change != nil {
		change(&o)
	}
	return w.StartWith(o)
}

// starting has the agent attach in a container before it starts, within the time, and reports
// whether the container waited for it.
func (r *announcing) starting(p *world.Pod, within time.Duration) bool {
	r.T.Helper()
	if !r.Chooses(containers.Container{
		ID: p.ID, Name: p.Name, Pod: containers.Pod{Namespace: p.Pod.Namespace, Name: p.Pod.Name, Labels: p.Pod.Labels, SandboxID: p.Pod.SandboxID},
	}) {
		return false
	}
	ctx, stop := context.WithTimeout(r.T.Context(), within)
	defer stop()
	r.Attach(ctx, p.Container)
	return true
}

// eth0s are the devices of pods.
var eth0s = &v1alpha1.Interfaces{Names: []string{"eth0"}}

// attachedTo is in how many places an application is attached, as its status has it.
func attachedTo(a *agent.Agent, uid string) (places int) {
	for _, s := range a.Status() {
		for _, p := range s.Programs {
			for _, l := range p.Links {
				if s.UID == uid && l.State == agent.Attached {
					places++
				}
			}
		}
	}
	return places
}

// TestAContainerStartsWithItsProgramsAttached starts containers of one team, each of which runs
// the moment it is let: everything it does is counted, and containers of others do not wait.
func TestAContainerStartsWithItsProgramsAttached(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), &announcing{Runtime: world.NewRuntime(t)}
	a := announceTo(w, r, nil)
	web := v1alpha1.Pods{Containers: []string{"web"}}
	calls := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(web))
	syscalls := world.OfTeam(w, "team-a", "tracepoint_count", "tracepoint_count", v1alpha1.Attachment{
		Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_exit", Pods: &web,
	})
	packets := world.OfTeam(w, "team-a", "xdp_count", "count_packets", v1alpha1.Attachment{Hook: "xdp", Interfaces: eth0s, Pods: &web})
	world.Must(t, w.Accept(a, calls, syscalls, packets))
	for i := range 5 {
		p := r.Start("team-a", "web", "web", nil).Connected(fmt.Sprint("cn", i))
		if !r.starting(p, time.Minute) {
			t.Fatal("a container does not wait for the programs that choose it")
		}
		before, system := world.Counted(w, calls.UID), world.Counted(w, syscalls.UID)
		p.Runs("app")
		if got := world.Counted(w, calls.UID) - before; got != world.Worked {
			t.Errorf("%d calls of %d are counted", got, world.Worked)
		}
		if world.Counted(w, syscalls.UID) == system {
			t.Error("no system call is counted")
		}
		if n := attachedTo(a, packets.UID); n != i+1 {
			t.Errorf("the program for packets is attached in %d places", n)
		}
	}
	for what, p := range map[string]*world.Pod{
		"another team's": r.Start("team-b", "web", "web", nil), "one that is not chosen": r.Start("team-a", "web", "sidecar", nil),
	} {
		if r.starting(p, time.Minute) {
			t.Errorf("%s waits", what)
		}
	}
}

// TestNoContainerWaitsForALoad has a version be with the verifier.
func TestNoContainerWaitsForALoad(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), &announcing{Runtime: world.NewRuntime(t)}
	a := announceTo(w, r, nil)
	p := slow(w)
	for i := range p.Programs {
		p.Programs[i].Attach[0].Pods = &v1alpha1.Pods{}
	}
	w.Give(a, p)
	world.Until(t, "the slow load to begin", time.Minute, func() bool { return loads(w, a, "slow") })
	if r.starting(r.Start("team-a", "web", "web", nil), time.Minute) {
		t.Error("a container waited for the verifier")
	}
	if !loads(w, a, "slow") {
		t.Skip("SKIPPED: the load was over before a container could start")
	}
}

// TestNoContainerWaitsForWhatEnds has a container begin to wait in the reconcile that ends an application: the next one, which
// finds that ended, begins after the container has started.
func TestNoContainerWaitsForWhatEnds(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), &announcing{Runtime: world.NewRuntime(t)}
	a := announceTo(w, r, nil)
	web := r.Start("team-a", "web", "web", nil)
	stays, ends := ofTeamOn(w, "team-a", "stays", "cgroup_skb/egress"), ofTeamOn(w, "team-a", "ends", "cgroup_skb/egress")
	w.Give(a, stays, ends)
	world.Until(t, "both to be attached", time.Minute, func() bool { return attachedTo(a, stays.UID) == 1 && attachedTo(a, ends.UID) == 1 })
	started, looks := make(chan bool), 0
	a.OnLook(func() {
		switch looks++; looks {
		case 1:
			go func() {
				r.starting(web, 2*time.Minute)
				close(started)
			}()
			world.Until(t, "the container to wait", time.Minute, a.IsStartWaiting)
		case 2:
			select {
			case <-started:
			case <-time.After(time.Minute):
				t.Error("the container waits for another reconcile")
			}
		}
	})
	w.Give(a, w.Tombstone(ends))
	<-started
	world.Until(t, "it to end", time.Minute, func() bool { return attachedTo(a, ends.UID) == 0 })
	a.OnLook(func() {})
}

// TestATenantThatIsLateIsNotWaitedFor has the chain of one team take long.
func TestATenantThatIsLateIsNotWaitedFor(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), &announcing{Runtime: world.NewRuntime(t)}
	now := world.NewClock()
	a := announceTo(w, r, func(o *agent.Options) { o.Clock = now.Now })
	hold := make(chan struct{})
	let := sync.OnceFunc(func() { close(hold) })
	t.Cleanup(let)
	a.RefuseChains(func(members []string) error {
		if slices.Contains(members, "count_packets") {
			<-hold
		}
		return nil
	})
	slow := world.OfTeam(w, "team-a", "xdp_count", "count_packets", v1alpha1.Attachment{Hook: "xdp", Interfaces: eth0s, Pods: &v1alpha1.Pods{}})
	quick := world.OfTeam(w, "team-b", "tcx_count", "count_ingress", v1alpha1.Attachment{Hook: "tcx/ingress", Interfaces: eth0s, Pods: &v1alpha1.Pods{}})
	// The chain of one program needs no load.
	member := world.OfTeam(w, "team-a", "xdp_pass", "xdp_pass", v1alpha1.Attachment{Hook: "xdp", Interfaces: eth0s, Pods: &v1alpha1.Pods{}})
	world.Must(t, w.Accept(a, slow, member, quick))
	pods := map[string]*world.Pod{}
	for _, name := range []string{"first", "second"} {
		pods[name] = r.Start("team-a", name, "web", nil).Connected("cn-" + name)
	}
	if !r.starting(pods["first"], 300*time.Millisecond) {
		t.Error("the first container does not wait")
	}
	if r.starting(pods["second"], time.Minute) {
		t.Error("a container waits for a tenant that was late")
	}
	// One namespace after the other would hold the node up all the time.
	other := r.Start("team-b", "web", "web", nil).Connected("cn-other")
	if r.starting(other, time.Minute) {
		t.Error("another team's container waits right after one that waited in vain")
	}
	now.Forward(time.Second)
	if !r.starting(other, time.Minute) || attachedTo(a, quick.UID) != 1 {
		t.Errorf("another team's container has %d programs as it starts", attachedTo(a, quick.UID))
	}
	for pause := 5 * time.Second; pause < 2*time.Minute; pause *= 2 {
		now.Forward(min(pause, time.Minute) - 2*time.Second)
		if r.starting(pods["second"], time.Minute) {
			t.Errorf("a container waits for a tenant that was late less than %v ago", pause)
		}
		if now.Forward(2 * time.Second); !r.starting(pods["second"], 300*time.Millisecond) {
			t.Errorf("a container does not wait for a tenant that was late %v ago", pause)
		}
	}
	now.Forward(time.Minute)
	let()
	if !r.starting(pods["second"], time.Minute) || attachedTo(a, slow.UID) == 0 {
		t.Error("a container does not wait for a tenant that was late long ago")
	}
	if !r.starting(r.Start("team-a", "third", "web", nil).Connected("cn-third"), time.Minute) {
		t.Error("a container does not wait for a tenant that was in time")
	}
}

// TestAContainerStartsWhenItsProbeIsMade has the kernel take long to make a probe for a container,
// which waits for it within its time.
func TestAContainerStartsWhenItsProbeIsMade(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	for what, within := range map[string]time.Duration{"in time": time.Minute, "too late": 300 * time.Millisecond} {
		t.Run(what, func(t *testing.T) {
			w, r := world.New(t), &announcing{Runtime: world.NewRuntime(t)}
			a := announceTo(w, r, nil)
			p := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
			world.Must(t, w.Accept(a, p))
			let, _ := a.HoldLinks(p.UID)
			t.Cleanup(let)
			web, waited := r.Start("team-a", "web", "web", nil), make(chan bool)
			go func() {
				is := r.starting(web, within)
				web.Runs("app")
				waited <- is
			}()
			world.Until(t, "the kernel to be asked for the probe", time.Minute, func() bool { return isMaking(a, p) })
			want := uint64(world.Worked)
			if within < time.Second {
				want = 0
			} else {
				let()
			}
			if is, got := <-waited, world.Counted(w, p.UID); !is || got != want {
				t.Errorf("it waited: %v, and %d calls are counted, want %d", is, got, want)
			}
			let()
			world.Until(t, "the probe to be attached", time.Minute, func() bool { return attachedTo(a, p.UID) == 1 })
		})
	}
}

// TestABusyAgentHoldsContainersUpOnce announces a container that no reconcile sees.
func TestABusyAgentHoldsContainersUpOnce(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), &announcing{Runtime: world.NewRuntime(t)}
	now := world.NewClock()
	a := announceTo(w, r, func(o *agent.Options) { o.Clock = now.Now })
	world.Must(t,
		w.Accept(a, world.OfTeam(w, "team-a", "tracepoint_count", "tracepoint_count", v1alpha1.Attachment{
			Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_exit", Pods: &v1alpha1.Pods{},
		})))
	p := r.Start("team-a", "web", "web", nil)
	unseen := *p
	unseen.Container.ID = "unseen"
	if !r.starting(&unseen, 50*time.Millisecond) || r.starting(p, time.Minute) {
		t.Error("a container waited for an agent that was late, or none did before")
	}
	now.Forward(time.Second)
	if !r.starting(p, time.Minute) {
		t.Error("a container does not wait for an agent that was late some time ago")
	}
}

// TestAProbeIsMadeThroughAContainerThatRuns has the container end of whose files a probe was to be
// made, which another one shares that waits to start.
func TestAProbeIsMadeThroughAContainerThatRuns(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), &announcing{Runtime: world.NewRuntime(t)}
	a := announceTo(w, r, nil)
	p := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
	world.Must(t, w.Accept(a, p))
	ended, starts := r.Start("team-a", "a", "web", nil), r.Start("team-a", "b", "web", nil)
	ended.Task.Ends()
	for len(a.Reconciled()) > 0 {
		<-a.Reconciled()
	}
	waited := make(chan bool)
	go func() {
		is := r.starting(starts, time.Minute)
		starts.Runs("app")
		waited <- is
	}()
	<-a.Reconciled()
	ended.Ends()
	a.Wake()
	if !<-waited {
		t.Fatal("the container does not wait")
	}
	if got := world.Counted(w, p.UID); got != world.Worked {
		t.Errorf("%d calls of %d are counted", got, world.Worked)
	}
}
