package integration

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/command"
)

// BenchmarkNodes brings applications to nodes whose agents are real and whose
// kernels are simulated, and then a new version of them, in two steps as is the
// default. It reports the seconds until all are Ready, and what the controller
// and each node asked of the API server until they rest: requests, those of them
// that write, and the kB of their bodies and of the answers'; for the first
// version and for the second; then the same for deleting all of them, until no node
// has any. Last it reports the memory of skep-controller, which runs as a process of
// its own.
func BenchmarkNodes(b *testing.B) {
	for _, size := range []struct{ nodes, applications int }{{1, 1}, {1, 10}, {1, 50}, {1, 100}, {10, 20}, {1000, 1}} {
		b.Run(fmt.Sprintf("nodes=%d/applications=%d", size.nodes, size.applications), func(b *testing.B) {
			for b.Loop() {
				newScale(b, size.nodes).measures(size.applications)
			}
		})
	}
}

// scale is a cluster of simulated nodes and a controller.
type scale struct {
	*cluster
	b          *testing.B
	nodes      int
	agents     *agents
	controller *process
}

func newScale(b *testing.B, nodes int) *scale {
	s := newScaleOn(b, newCluster(b), nodes)
	s.starts()
	return s
}

// newScaleOn starts a controller amid nodes whose agents are yet to start.
func newScaleOn(b *testing.B, c *cluster, nodes int, flags ...string) *scale {
	s := &scale{cluster: c, b: b, nodes: nodes}
	create := errgroup.Group{}
	create.SetLimit(8)
	for i := range nodes {
		create.Go(func() error {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}
			if err := s.Create(b.Context(), n); err != nil {
				return err
			}
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			return s.Status().Update(b.Context(), n)
		})
	}
	if err := create.Wait(); err != nil {
		b.Fatal(err)
	}
	signer := s.Signer("team-a")
	s.create(signer)
	s.controller = s.process(command.Build(b, "skep-controller"), flags...)
	s.condition(signer, v1alpha1.ConditionReady, metav1.ConditionTrue, "Active")
	return s
}

// starts starts the agents, and waits until each has reported.
func (s *scale) starts(change ...func(folder string, o *orders)) {
	s.b.Helper()
	s.agents = s.simulates(s.nodes, change...)
	s.until("every node to report", func() error {
		var list v1alpha1.BpfNodeList
		if err := s.List(s.b.Context(), &list); err != nil || len(list.Items) < s.nodes {
			return fmt.Errorf("%d do, %w", len(list.Items), err)
		}
		return nil
	})
}

// measures applies so many applications, and then a new version of each.
func (s *scale) measures(applications int) {
	first, _ := s.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	second, _ := s.Push("app:v2", append(slices.Clone(programs.Object("tracepoint_count")), 0), "team-a")
	var all []*v1alpha1.ClusterBpfApplication
	for i := range applications {
		app := application(fmt.Sprintf("app-%d", i), first)
		app.Spec.Rollout = nil
		all = append(all, app)
	}
	ready := func() error { return s.areReady(applications) }
	s.spends("first", ready, func() {
		for _, app := range all {
			s.create(app)
		}
	})
	s.spends("update", ready, func() {
		for _, app := range all {
			s.change(app, func() { app.Spec.Bytecode.Image = second })
		}
	})
	s.controller.weighs(s.b)
	s.spends("delete", s.areGone, func() {
		for _, app := range all {
			if err := s.Delete(s.b.Context(), app); err != nil {
				s.b.Fatal(err)
			}
		}
	})
}

// areReady fails unless so many applications are Ready and loaded on every node.
func (s *scale) areReady(applications int) error {
	var list v1alpha1.ClusterBpfApplicationList
	if err := s.List(s.b.Context(), &list); err != nil {
		return err
	}
	ready := 0
	for i := range list.Items {
		app := &list.Items[i]
		if app.Status.ObservedGeneration == app.Generation && app.Status.Nodes != nil &&
			int(app.Status.Nodes.Loaded) == s.nodes && meta.IsStatusConditionTrue(app.Status.Conditions, v1alpha1.ConditionReady) {
			ready++
		}
	}
	if ready < applications {
		return fmt.Errorf("%d are", ready)
	}
	return nil
}

// areGone fails while a node has an application loaded.
func (s *scale) areGone() error {
	var list v1alpha1.BpfNodeList
	if err := s.List(s.b.Context(), &list); err != nil {
		return err
	}
	for _, n := range list.Items {
		if n.Status.Counts.Loaded > 0 {
			return fmt.Errorf("node %s has %d", n.Name, n.Status.Counts.Loaded)
		}
	}
	return nil
}

// spends reports what it takes until a change is done everywhere.
func (s *scale) spends(what string, done func() error, change func()) {
	controller, nodes := s.rests()
	began := time.Now()
	change()
	s.until(what+" to be done", done)
	s.b.ReportMetric(time.Since(began).Seconds(), "s/"+what)
	did, each := s.rests()
	s.reports("controller", what, did.since(controller), 1)
	s.reports("node", what, each.since(nodes), s.nodes)
}

// rests waits until nobody has asked for anything for longer than a node or the
// controller gathers what to write, and returns what the controller and all
// nodes have spent.
func (s *scale) rests() (controller, nodes spent) {
	s.b.Helper()
	since := time.Now()
	s.until("the cluster to rest", func() error {
		last := controller.Requests + nodes.Requests
		controller, nodes = s.controller.spent(), s.agents.spent()
		if controller.Requests+nodes.Requests != last {
			since = time.Now()
		}
		if time.Since(since) < 2*time.Second {
			return errors.New("it does not")
		}
		return nil
	})
	return controller, nodes
}

// reports tells what each of so many spent.
func (s *scale) reports(who, what string, all spent, of int) {
	for unit, n := range map[string]float64{
		"requests": float64(all.Requests), "writes": float64(all.Writes),
		"kB-sent": float64(all.Sent) / 1e3, "kB-received": float64(all.Received) / 1e3,
	} {
		s.b.ReportMetric(n/float64(of), who+"-"+unit+"/"+what)
	}
}
