package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// promised is how soon a revoked signer, or a changed policy, has acted on all
// that it touches.
const promised = 30 * time.Second

// crowd is a hundred applications, of both scopes, that run on two simulated
// nodes.
type crowd struct {
	*cluster
	signer *v1alpha1.BpfSigner
}

// crowded is how many applications a crowd has.
const crowded = 100

func newCrowd(t *testing.T) *crowd {
	c := &crowd{cluster: newCluster(t)}
	c.control()
	c.signer = c.Signer("team-a")
	c.create(c.signer)
	for i := range 2 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}
		c.create(n)
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if err := c.Status().Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	c.simulates(2)
	traced, _ := c.Push("trace:v1", programs.Object("tracepoint_count"), "team-a")
	counted, _ := c.Push("count:v1", programs.Object("xdp_count"), "team-a")
	for i := range crowded / 2 {
		c.create(application(fmt.Sprintf("app-%d", i), traced), asks("default", fmt.Sprintf("app-%d", i), counted))
	}
	c.until("all to be loaded", func() error {
		all, err := c.applications()
		if err != nil {
			return err
		}
		for _, app := range all {
			if !apimeta.IsStatusConditionTrue(app.GetConditions(), v1alpha1.ConditionReady) || app.Report().Nodes.Loaded != 2 {
				return fmt.Errorf("%s: %v", app.Identity(), app.GetConditions())
			}
		}
		return c.runs(len(all))
	})
	return c
}

// evaluated is an application of either scope.
type evaluated interface {
	v1alpha1.Application
	conditioned
}

// applications are all of them.
func (c *crowd) applications() ([]evaluated, error) {
	var (
		cluster    v1alpha1.ClusterBpfApplicationList
		namespaced v1alpha1.BpfApplicationList
		all        []evaluated
	)
	if err := errors.Join(c.List(c.t.Context(), &cluster), c.List(c.t.Context(), &namespaced)); err != nil {
		return nil, err
	}
	for i := range cluster.Items {
		all = append(all, &cluster.Items[i])
	}
	for i := range namespaced.Items {
		all = append(all, &namespaced.Items[i])
	}
	if len(all) != crowded {
		return nil, fmt.Errorf("there are %d applications", len(all))
	}
	return all, nil
}

// runs reports whether so many applications are to run, all others are to be
// unloaded, and both nodes have done as they are told.
func (c *crowd) runs(want int) error {
	var intents v1alpha1.BpfIntentList
	var nodes v1alpha1.BpfNodeList
	if err := errors.Join(c.List(c.t.Context(), &intents), c.List(c.t.Context(), &nodes)); err != nil {
		return err
	}
	live := 0
	for i := range intents.Items {
		if !intents.Items[i].Spec.Tombstone {
			live++
		}
	}
	if live != want || len(intents.Items) != crowded {
		return fmt.Errorf("%d of %d intents are live", live, len(intents.Items))
	}
	for i := range nodes.Items {
		if n := nodes.Items[i].Status.Counts.Loaded; int(n) != want {
			return fmt.Errorf("%s runs %d", nodes.Items[i].Name, n)
		}
	}
	return nil
}

// left waits no longer than is promised until so many applications run.
func (c *crowd) left(want int) {
	c.t.Helper()
	began := time.Now()
	c.within(promised, fmt.Sprintf("%d of %d applications to run", want, crowded), func() error { return c.runs(want) })
	c.t.Logf("it took %s", time.Since(began))
}

func TestARevokedSignerUnloadsAHundredApplicationsInTime(t *testing.T) {
	c := newCrowd(t)
	c.change(c.signer, func() { c.signer.Spec.Revoked = true })
	c.left(0)
}

func TestAPolicyUnloadsAHundredApplicationsInTime(t *testing.T) {
	c := newCrowd(t)
	p := clusterPolicy("strict", `deny contains "no" if {
	input.application.kind == "BpfApplication"
	endswith(input.application.metadata.name, "7")
}`, v1alpha1.RunningUnload)
	c.create(p)
	c.left(crowded - 5)

	c.change(p, func() { p.Spec.Rego = "package skep.policy\n\ndeny contains \"no\"" })
	revision := ""
	c.within(promised, "unload protection to hold all", func() error {
		all, err := c.applications()
		if err != nil {
			return err
		}
		for _, app := range all {
			ready := apimeta.FindStatusCondition(app.GetConditions(), v1alpha1.ConditionReady)
			_, after, protected := strings.Cut(ready.Message, policy.AnnotationConfirm+"=")
			if ready.Reason != "Denied" || ready.ObservedGeneration != app.GetGeneration() {
				return fmt.Errorf("%s: %+v", app.Identity(), ready)
			}
			if protected {
				revision = after
			}
		}
		return nil
	})
	if err := c.runs(crowded - 5); err != nil || revision == "" {
		t.Fatalf("before anybody confirms revision %q: %v", revision, err)
	}
	c.change(p, func() { metav1.SetMetaDataAnnotation(&p.ObjectMeta, policy.AnnotationConfirm, revision) })
	c.left(0)
}
