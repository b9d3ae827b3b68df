package controlplane_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
)

var cpuSeconds = regexp.MustCompile(`(?m)^process_cpu_seconds_total (\S+)$`)

// cpu is the time that the API server has computed, in seconds.
func cpu(b *testing.B) float64 {
	b.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(plane.Config)
	if err != nil {
		b.Fatal(err)
	}
	body, err := d.RESTClient().Get().AbsPath("/metrics").DoRaw(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	found := cpuSeconds.FindSubmatch(body)
	if found == nil {
		b.Fatal("the API server counts no CPU time")
	}
	seconds, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return seconds
}

// BenchmarkLargestApplication has a real API server validate an application with as
// many attachments as there may be, and reports what that takes of its CPU.
func BenchmarkLargestApplication(b *testing.B) {
	app := &v1alpha1.ClusterBpfApplication{}
	app.GenerateName = "largest-"
	app.Spec.Bytecode.Image = "r.example.com/x:v1"
	for i := range v1alpha1.MaxAttachments / v1alpha1.MaxProgramAttachments {
		app.Spec.Programs = append(app.Spec.Programs, v1alpha1.Program{Name: fmt.Sprintf("p%d", i),
			Attach: slices.Repeat([]v1alpha1.Attachment{{Hook: "cgroup/setsockopt", Cgroup: "/a"}}, v1alpha1.MaxProgramAttachments)})
	}
	c, err := client.New(plane.Config, client.Options{Scheme: newScheme(b)})
	if err != nil {
		b.Fatal(err)
	}
	requests, before, began := 0, cpu(b), time.Now()
	for b.Loop() {
		if err := c.Create(b.Context(), app.DeepCopy(), client.DryRunAll); err != nil {
			b.Fatal(err)
		}
		requests++
	}
	b.ReportMetric((cpu(b)-before)/float64(requests)*1e3, "apiserver-ms/op")
	b.ReportMetric(time.Since(began).Seconds()/float64(requests)*1e3, "ms/op")
	b.ReportMetric(0, "ns/op")
}
