package integration

import (
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/test/programs"
)

// BenchmarkNodes brings applications to nodes whose agents are real and whose
// kernels are simulated, and then a new version of them, in two steps as is the
// default. It reports the seconds until all are Ready, what the controller asked
// of the API server, and what each node did; for the first version and for the
// second.
func BenchmarkNodes(b *testing.B) {
	for _, size := range []struct{ nodes, applications int }{{1, 1}, {1, 10}, {1, 50}, {1, 100}, {10, 20}, {1000, 1}} {
		b.Run(fmt.Sprintf("nodes=%d/applications=%d", size.nodes, size.applications), func(b *testing.B) {
			for b.Loop() {
				newScale(b, size.nodes).measures(size.applications)
			}
		})
	}
}

// scale is a cluster of simulated nodes and a controller whose requests are
// counted.
type scale struct {
	*cluster
	b          *testing.B
	nodes      int
	agents     *agents
	controller traffic
}

func newScale(b *testing.B, nodes int) *scale {
	s := &scale{cluster: newCluster(b), b: b, nodes: nodes}
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
	b.Cleanup(s.control(func(o *controller.Options) {
		o.Config = rest.CopyConfig(o.Config)
		o.Config.Wrap(s.controller.wrap)
	}))
	s.create(s.Signer("team-a"))
	s.agents = s.simulates(nodes)
	s.until("every node to report", func() error {
		var list v1alpha1.BpfNodeList
		if err := s.List(b.Context(), &list); err != nil || len(list.Items) < nodes {
			return fmt.Errorf("%d do, %w", len(list.Items), err)
		}
		return nil
	})
	return s
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
	s.spends("first", applications, func() {
		for _, app := range all {
			s.create(app)
		}
	})
	s.spends("update", applications, func() {
		for _, app := range all {
			s.change(app, func() { app.Spec.Bytecode.Image = second })
		}
	})
	debug.FreeOSMemory()
	s.b.ReportMetric(resident(), "MB/controller")
}

// spends reports what it takes until a change is Ready everywhere.
func (s *scale) spends(what string, applications int, change func()) {
	nodes, controller, began := s.agents.spent(), s.controller.spent(), time.Now()
	change()
	s.until("all to be ready", func() error {
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
	})
	s.b.ReportMetric(time.Since(began).Seconds(), "s/"+what)
	of, did := s.agents.spent().since(nodes), s.controller.spent().since(controller)
	s.b.ReportMetric(float64(did.Writes), "controller-writes/"+what)
	s.b.ReportMetric(float64(did.Sent)/1e3, "controller-kB/"+what)
	s.b.ReportMetric(float64(of.Writes)/float64(s.nodes), "node-writes/"+what)
	s.b.ReportMetric(float64(of.Sent)/1e3/float64(s.nodes), "node-kB-sent/"+what)
	s.b.ReportMetric(float64(of.Received)/1e3/float64(s.nodes), "node-kB-received/"+what)
}

// resident is the memory of this process in MB, most of which is the
// controller's: the agents and the API server are others.
func resident() float64 {
	body, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(body) {
		if value, found := bytes.CutPrefix(line, []byte("VmRSS:")); found {
			kB, _ := strconv.ParseFloat(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))), 64)
			return kB / 1e3
		}
	}
	return 0
}
