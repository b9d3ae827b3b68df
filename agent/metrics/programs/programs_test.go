package programs_test

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/agent/cost"
	"github.com/skep-dev/skep/agent/metrics/programs"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/series"
)

// TestAnAgentsProgramsHaveTheirCost: one that is alone at its interface, two of different applications in one chain, and a program that is not Skep's.
func TestAnAgentsProgramsHaveTheirCost(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "mm0", "mm1")
	a, stop := w.Start()
	defer stop()
	c := cost.New(cost.Options{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(programs.New(programs.Options{Status: a.Status, Clock: c}))
	give := func(name string) {
		t.Helper()
		w.Must(a, w.Intent(name, "xdp_pass", v1alpha1.Program{Name: "xdp_pass", Attach: world.On("xdp", "mm0")}))
	}
	packets := func() {
		t.Helper()
		if err := c.Measure(t.Context(), func() { world.Send(t, "mm1", 40) }); err != nil {
			t.Fatal(err)
		}
	}
	give("web")
	series.Of(t, registry)
	packets()
	of := func(metric, application, program string) string {
		kind := ""
		if application != "" {
			kind = "ClusterBpfApplication"
		}
		return metric + `{application="` + application + `",kind="` + kind + `",namespace="",program="` + program + `"}`
	}
	first := series.Of(t, registry)
	attached := `skep_program_attachments{application="web",hook="xdp",kind="ClusterBpfApplication",namespace="",program="xdp_pass",reason="",state="Attached"}`
	runs := first[of("skep_program_runs_total", "web", "xdp_pass")]
	if runs < 40 || first[of("skep_program_run_seconds_total", "web", "xdp_pass")] <= 0 || first[attached] != 1 || first["skep_program_windows_total"] != 1 {
		t.Errorf("after 40 packets: %v", only(first))
	}
	if first[of("skep_program_memory_bytes", "web", "xdp_pass")] <= 0 || first["skep_bpf_jit_bytes"] <= 0 {
		t.Errorf("memory: %v", only(first))
	}
	foreign := world.ForeignProgram(t, ebpf.XDP)
	if err := c.Measure(t.Context(), func() {
		if _, err := foreign.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 500}); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	others := series.Of(t, registry)
	if more := others["skep_unmanaged_program_runs_total"] - first["skep_unmanaged_program_runs_total"]; more < 500 || others["skep_unmanaged_programs"] < 1 {
		t.Errorf("a program of others ran 500 times: %v more runs, of %v programs", more, others["skep_unmanaged_programs"])
	}
	give("dns")
	// The status has what a reconcile found, not what it then made.
	world.Looks(t, a)
	packets()
	series.Of(t, registry)
	packets()
	second := series.Of(t, registry)
	if second[of("skep_program_runs_total", "", "chain")] < 40 || second[of("skep_program_runs_total", "web", "xdp_pass")] < runs {
		t.Errorf("in a chain: %v", only(second))
	}
}

// only are the series of programs.
func only(all map[string]float64) map[string]float64 {
	some := map[string]float64{}
	for name, v := range all {
		if strings.HasPrefix(name, "skep_program") || strings.HasPrefix(name, "skep_unmanaged") || strings.HasPrefix(name, "skep_bpf") {
			some[name] = v
		}
	}
	return some
}
