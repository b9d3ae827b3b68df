package integration

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/command"
)

// BenchmarkAThousandApplications applies a thousand applications of one image to
// a real API server and then revokes its signer. It reports the seconds from
// the first apply to the last sealed intent, from the revocation to the last
// tombstone, the requests that the registry had meanwhile, and the memory of
// skep-controller, which runs as a process of its own.
func BenchmarkAThousandApplications(b *testing.B) {
	const many = 1000
	binary := command.Build(b, "skep-controller")
	for b.Loop() {
		c := newCluster(b)
		controller := c.process(binary)
		signer := c.Signer("team-a")
		c.create(signer)
		c.condition(signer, v1alpha1.ConditionReady, metav1.ConditionTrue, "Active")
		ref, _ := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
		before, start := c.Requests.Load(), time.Now()
		for i := range many {
			c.create(application(fmt.Sprintf("app-%d", i), ref))
		}
		c.all(many, func(s v1alpha1.BpfIntentSpec) bool { return !s.Tombstone })
		b.ReportMetric(time.Since(start).Seconds(), "s/sealed")
		b.ReportMetric(float64(c.Requests.Load()-before), "requests")
		start = time.Now()
		c.change(signer, func() { signer.Spec.Revoked = true })
		c.all(many, func(s v1alpha1.BpfIntentSpec) bool { return s.Tombstone })
		b.ReportMetric(time.Since(start).Seconds(), "s/revoked")
		controller.weighs(b)
		controller.stop()
	}
}

// all waits until so many intents are as wanted.
func (c *cluster) all(many int, want func(v1alpha1.BpfIntentSpec) bool) {
	c.t.Helper()
	c.until("all intents", func() error {
		var list v1alpha1.BpfIntentList
		if err := c.List(c.t.Context(), &list); err != nil {
			return err
		}
		n := 0
		for i := range list.Items {
			if want(list.Items[i].Spec) {
				n++
			}
		}
		if n < many {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}
