package agent_test

import (
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
)

// BenchmarkNeighbourAmidLives has a namespace with 250 pods, and programs in them on hooks of each kind, end and start pods, one after
// the other: 250 times at a pace of four a second, and a thousand times as fast as they go. Meanwhile another namespace adds and takes
// away an application, and starts containers. It reports what these wait, at rest and amid the lives. The pods take the processors, too,
// whether programs are for them or not: in turns with the thousand, pods of a third namespace, which none are for, end and start at that pace.
func BenchmarkNeighbourAmidLives(b *testing.B) {
	const pods, asks = 250, 20
	for b.Loop() {
		w, r := world.New(b), &announcing{Runtime: world.NewRuntime(b)}
		o := w.Options()
		o.SweepInterval, o.Log = time.Second, slog.New(slog.NewTextHandler(io.Discard, nil))
		o.Containers = r.source
		a, stop := w.Run(o)
		own := r.Start("team", "web", "app", nil).Connected("nb-team")
		applications := onAllHooks(w)
		w.Give(a, append(applications, ofTeamOn(w, "team", "always", "cgroup_skb/egress"))...)
		crowd := startLives(r, "crowd", pods)
		world.Until(b, "all to be attached", 5*time.Minute, func() bool { return ownLinks(w, applications[0].UID) == pods })
		n := &neighbour{w: w, r: r, a: a, own: own, spent: map[string][]time.Duration{}}
		n.ask("rest", asks)
		n.amid("paced", 250, time.Second/4, crowd.live)
		bare, spent := startLives(r, "bare", 10), time.Duration(0)
		for range 10 {
			began := time.Now()
			n.amid("lives", 100, 0, crowd.live)
			took := time.Since(began)
			spent += took
			n.amid("bare", 25, took/100, bare.live)
		}
		b.ReportMetric(spent.Seconds(), "lives-s")
		for what, took := range n.spent {
			slices.Sort(took)
			for share, name := range map[int]string{50: "p50", 95: "p95", 100: "max"} {
				b.ReportMetric(float64(took[(len(took)-1)*share/100].Microseconds())/1000, what+"-"+name+"-ms")
			}
		}
		stop()
	}
}

// source is agent.Options.Containers.
func (r *announcing) source(wake func(changed ...containers.Pod)) (containers.Source, error) {
	_, err := r.Source(wake)
	return r, err
}

// onAllHooks are applications of the namespace crowd, in all of its pods.
func onAllHooks(w *world.World) []intent.Payload {
	all := []intent.Payload{ofTeamOn(w, "crowd", "egress", "cgroup_skb/egress")}
	for _, c := range []struct{ object, program, hook string }{
		{"cgroup_connect4", "cgroup_connect4", "cgroup/connect4"}, {"tcx_count", "count_packets", "tcx/ingress"}, {"xdp_count", "count_packets", "xdp"},
	} {
		at := v1alpha1.Attachment{Hook: c.hook, Pods: &v1alpha1.Pods{}}
		if c.hook == "xdp" || c.hook == "tcx/ingress" {
			at.Interfaces = eth0s
		}
		p := world.OfTeam(w, "crowd", c.object, c.program, at)
		p.UID, p.Application.Name = "uid-crowd-"+c.object, c.object
		all = append(all, p)
	}
	return append(all, world.OfTeam(w, "crowd", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{})),
		world.OfTeam(w, "crowd", "raw_tp_count", "raw_tp_count", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sched_process_exec", Pods: &v1alpha1.Pods{}}))
}

func ofTeamOn(w *world.World, namespace, name, hook string) intent.Payload {
	p := world.OfTeam(w, namespace, "cgroup_skb", "cgroup_egress", v1alpha1.Attachment{Hook: hook, Pods: &v1alpha1.Pods{}})
	p.UID, p.Application.Name = fmt.Sprintf("uid-%s-%s", namespace, name), name
	return p
}

// ownLinks counts the pins of an application's links, but for chains.
func ownLinks(w *world.World, uid string) (n int) {
	pins, _ := filepath.Glob(filepath.Join(w.BPFFS, uid, "+links", "*"))
	for _, pin := range pins {
		if !strings.Contains(filepath.Base(pin), "+") {
			n++
		}
	}
	return n
}

// livesOf are pods of a namespace, which end and start one after the other.
type livesOf struct {
	r         *announcing
	namespace string
	pods      []*world.Pod
	lives     int
}

func startLives(r *announcing, namespace string, pods int) *livesOf {
	c := &livesOf{r: r, namespace: namespace}
	for range pods {
		c.pods = append(c.pods, c.next())
	}
	return c
}

// next starts the next pod, which waits for its programs as long as the runtime holds it up.
func (c *livesOf) next() *world.Pod {
	p := c.r.Start(c.namespace, fmt.Sprint("web-", c.lives), "app", nil).Connected(fmt.Sprint(c.namespace, "-", c.lives))
	c.lives++
	c.r.starting(p, time.Second)
	return p
}

// live ends a pod and starts the next.
func (c *livesOf) live() {
	i := c.lives % len(c.pods)
	c.pods[i].Dies()
	c.pods[i] = c.next()
}

// neighbour asks the agent for something, and notes how long that takes.
type neighbour struct {
	w     *world.World
	r     *announcing
	a     *agent.Agent
	own   *world.Pod
	spent map[string][]time.Duration
	n     int
}

// amid asks until something was done so many times, at a pace at most.
func (n *neighbour) amid(what string, times int, pace time.Duration, do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range times {
			next := time.After(pace)
			do()
			<-next
		}
	}()
	for {
		n.ask(what, 1)
		select {
		case <-done:
			return
		default:
		}
	}
}

func (n *neighbour) ask(amid string, times int) {
	took := func(what string, began time.Time) {
		n.spent[amid+"-"+what] = append(n.spent[amid+"-"+what], time.Since(began))
	}
	for range times {
		n.n++
		p := ofTeamOn(n.w, "team", fmt.Sprint("app-", n.n), "cgroup_skb/egress")
		began := time.Now()
		n.w.Give(n.a, p)
		world.Until(n.w.T, "it to be attached", time.Minute, func() bool { return ownLinks(n.w, p.UID) == 1 })
		took("load", began)
		began = time.Now()
		n.w.Give(n.a, n.w.Tombstone(p))
		world.Until(n.w.T, "it to end", time.Minute, func() bool { return ownLinks(n.w, p.UID) == 0 })
		took("end", began)
		began = time.Now()
		n.r.starting(n.own, time.Minute)
		took("start", began)
	}
}
