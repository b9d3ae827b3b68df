package mapmetrics_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/agent/readers/mapmetrics"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestAnAgentExportsTheMapsOfWhatRuns over a change of metrics alone, which loads nothing, a version that resets the map, a restart,
// a withdrawal, and the end of the application.
func TestAnAgentExportsTheMapsOfWhatRuns(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "mm0", "mm1")
	start := func() (stop func(), give func(p intent.Payload), revision func() string, packets func(metric string) float64) {
		registry, o := prometheus.NewRegistry(), w.Options()
		o.MapMetrics = mapmetrics.New(slog.New(slog.DiscardHandler))
		registry.MustRegister(o.MapMetrics)
		a, stop := w.Run(o)
		give = func(p intent.Payload) {
			t.Helper()
			w.Serial++
			p.Serial = w.Serial
			if err := w.Accept(a, p); err != nil {
				t.Fatal(err)
			}
		}
		packets = func(metric string) float64 {
			sum := 0.
			for name, value := range of(t, registry) {
				if strings.HasPrefix(name, "skep_map_"+metric+`{application="meter",kind="ClusterBpfApplication",namespace="",`) {
					sum += value
				}
			}
			return sum
		}
		return stop, give, func() string { return world.StatusOf(a, "meter").Revision }, packets
	}
	counted := func(name string) *v1alpha1.MapMetrics {
		m := counter(name, "proto=")
		m.Value = "packets"
		return &m
	}
	meter := w.Intent("meter", "xdp_series", v1alpha1.Program{Name: "xdp_series", Attach: world.On("xdp", "mm0")})
	metered := func(m v1alpha1.Map) intent.Payload {
		p := meter
		p.Maps = map[string]v1alpha1.Map{"sizes": m}
		return p
	}
	stop, give, revision, packets := start()
	give(metered(v1alpha1.Map{Metrics: counted("a_total")}))
	first := revision()
	world.Send(t, "mm1", 5)
	world.Until(t, "the packets to be counted", time.Minute, func() bool { return packets("a_total") >= 5 })
	give(metered(v1alpha1.Map{Metrics: counted("b_total")}))
	if packets("a_total") != 0 || packets("b_total") < 5 || revision() != first {
		t.Errorf("after a change of metrics there are %v and %v; revision %s, was %s", packets("a_total"), packets("b_total"), revision(), first)
	}
	stop()
	stop, give, revision, packets = start()
	world.Until(t, "the packets to be known again", time.Minute, func() bool { return packets("b_total") >= 5 })
	if revision() != first {
		t.Errorf("revision is %s after a restart, was %s", revision(), first)
	}
	size := uint32(2048)
	give(metered(v1alpha1.Map{Metrics: counted("b_total"), OnUpdate: v1alpha1.MapReset, MaxEntries: &size}))
	if n := packets("b_total"); n >= 5 || revision() == first {
		t.Errorf("the map that replaced the other one has %v packets; revision %s", n, revision())
	}
	world.Send(t, "mm1", 7)
	world.Until(t, "the packets in the new map", time.Minute, func() bool { return packets("b_total") >= 7 })
	give(metered(v1alpha1.Map{OnUpdate: v1alpha1.MapReset, MaxEntries: &size}))
	if n := packets("b_total"); n != 0 {
		t.Errorf("%v packets after the metrics were withdrawn", n)
	}
	give(metered(v1alpha1.Map{Metrics: counted("c_total"), OnUpdate: v1alpha1.MapReset, MaxEntries: &size}))
	if n := packets("c_total"); n < 7 {
		t.Errorf("%v packets once they are exported again", n)
	}
	give(w.Tombstone(meter))
	if n := packets("c_total"); n != 0 {
		t.Errorf("%v packets of an application that is gone", n)
	}
	stop()
}
