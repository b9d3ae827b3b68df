package agent_test

import (
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/metrics"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/series"
)

// observed runs an agent, and returns it with what it counts by now.
func observed(w *world.World, t *testing.T) (*agent.Agent, func() map[string]float64) {
	t.Helper()
	registry, o := prometheus.NewRegistry(), w.Options()
	o.Observer = metrics.New(registry)
	return w.StartWith(o), func() map[string]float64 { return series.Of(t, registry) }
}

func TestLoadsAndAttachesAreTimed(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "ob0", "ob1")
	a, counts := observed(w, t)
	xdp := v1alpha1.Attachment{Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: []string{"ob0"}}}
	if err := w.Accept(a,
		world.Version(w, "1", xdp),
		w.Intent("other", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "ob0")}),
		w.Intent("raw", "raw_tp_count", world.RawProgram()),
	); err != nil {
		t.Fatal(err)
	}
	if err := w.Accept(a, w.Intent("bad", "xdp_rejected", v1alpha1.Program{Name: "xdp_rejected", Attach: world.On("xdp", "ob0")})); err == nil {
		t.Fatal("the verifier takes what it is to refuse")
	}
	got := counts()
	for series, want := range map[string]float64{
		`skep_agent_load_duration_seconds{result="ok",what="revision"}`:     3,
		`skep_agent_load_duration_seconds{result="failed",what="revision"}`: 1,
		`skep_agent_attach_duration_seconds{hook="raw_tp",result="ok"}`:     1,
		`skep_agent_attach_duration_seconds{hook="xdp",result="failed"}`:    0,
		`skep_agent_drift_healed_total{kind="detached"}`:                    0,
	} {
		if got[series] != want {
			t.Errorf("%s is %v, want %v", series, got[series], want)
		}
	}
	for _, series := range []string{
		`skep_agent_load_duration_seconds{result="ok",what="chain"}`, `skep_agent_attach_duration_seconds{hook="xdp",result="ok"}`,
	} {
		if got[series] == 0 {
			t.Errorf("%s counts nothing", series)
		}
	}
}

func TestDriftThatIsHealedIsCountedByKind(t *testing.T) {
	need.Kernel(t)
	for _, hook := range []string{"xdp", "tcx/ingress"} {
		t.Run(hook, func(t *testing.T) {
			world.NeedLink(t, hook)
			w := world.New(t)
			world.Veth(t, "ob0", "ob1")
			a, counts := observed(w, t)
			at := v1alpha1.Attachment{Hook: hook, Interfaces: &v1alpha1.Interfaces{Names: []string{"ob0"}}}
			if err := w.Accept(a, world.Version(w, "1", at)); err != nil {
				t.Fatal(err)
			}
			healed := func(kind agent.Drift) {
				t.Helper()
				world.Until(t, "it to be counted as "+string(kind), time.Minute, func() bool {
					return counts()[`skep_agent_drift_healed_total{kind="`+string(kind)+`"}`] == 1
				})
			}
			_, l := world.One(t, a)
			if err := os.Remove(l.Pin); err != nil {
				t.Fatal(err)
			}
			healed(agent.Unpinned)
			held, err := link.NewFromID(link.ID(l.ID))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = held.Close() }()
			kind := ebpf.XDP
			if hook != "xdp" {
				kind = ebpf.SchedCLS
			}
			if err := held.Update(world.ForeignProgram(t, kind)); err != nil {
				t.Fatal(err)
			}
			healed(agent.Replaced)
			if err := held.Detach(); err != nil {
				t.Fatal(err)
			}
			healed(agent.Detached)
		})
	}
}
