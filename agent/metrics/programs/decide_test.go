package programs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/cost"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/series"
)

// of is an application with programs.
func of(name, reason string, all ...agent.ProgramStatus) agent.ApplicationStatus {
	status := metav1.ConditionTrue
	if reason != "Deployed" {
		status = metav1.ConditionFalse
	}
	return agent.ApplicationStatus{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team", Name: name}, Revision: "r", Programs: all,
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionDeployed, Status: status, Reason: reason}}}
}

// on is an attachment: a program of the kernel that runs at a hook.
func on(hook string, state agent.LinkState, id uint32) agent.LinkStatus {
	return agent.LinkStatus{Hook: hook, State: state, Program: id}
}

func program1(name string, id uint32, links ...agent.LinkStatus) agent.ProgramStatus {
	return agent.ProgramStatus{Name: name, ID: id, Links: links}
}

// scrape is what a scrape of applications has, without what the kernel says of its own memory.
func scrape(t *testing.T, all ...agent.ApplicationStatus) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(New(Options{Status: func() []agent.ApplicationStatus { return all }}))
	got := series.Of(t, registry)
	for name := range got {
		if strings.HasPrefix(name, "skep_bpf_jit") || strings.HasPrefix(name, "skep_program_memory") {
			delete(got, name)
		}
	}
	return got
}

// TestAttachmentsAreCountedByState with the application's reason, and an application without a program by its own state.
func TestAttachmentsAreCountedByState(t *testing.T) {
	label := func(app, program, hook, state, reason string) string {
		return fmt.Sprintf(`skep_program_attachments{application=%q,hook=%q,kind="BpfApplication",namespace="team",program=%q,reason=%q,state=%q}`,
			app, hook, program, reason, state)
	}
	gone := of("gone", "Unloaded")
	gone.Tombstone, gone.Revision = true, ""
	got := scrape(t,
		of("web", "Deployed", program1("count", 1, on("tcx/ingress", agent.Attached, 1), on("tcx/ingress", agent.Attached, 1), on("xdp", agent.Attached, 9))),
		of("dns", "AttachFailed", program1("trace", 2, on("kprobe", agent.Failed, 0), on("kprobe", agent.Attached, 2))),
		of("new", "Queued"), of("bare", "LoadFailed", program1("none", 0)), gone)
	want := map[string]float64{
		label("web", "count", "tcx/ingress", "Attached", ""):                  2,
		label("web", "count", "xdp", "Attached", ""):                          1,
		label("dns", "trace", "kprobe", "Failed", "AttachFailed"):             1,
		label("dns", "trace", "kprobe", "Attached", "AttachFailed"):           1,
		label("new", "", "", string(v1alpha1.NodePending), "Queued"):          1,
		label("bare", "none", "", string(v1alpha1.NodePending), "LoadFailed"): 1,
		"skep_program_series_left_out":                                        0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSeriesAreBounded: what is beyond is counted, and is not taken for a program of others.
func TestSeriesAreBounded(t *testing.T) {
	var all []agent.ApplicationStatus
	for n := range uint32(MaxPrograms + 20) {
		var links []agent.LinkStatus
		for h := range 5 {
			links = append(links, on(fmt.Sprint("hook-", h), agent.Attached, n+1))
		}
		all = append(all, of(fmt.Sprintf("app-%04d", n), "Deployed", program1("p", n+1, links...)))
	}
	all[MaxPrograms+7].Application = v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "zebra"}
	n := nodeOf(all)
	if last := uint32(MaxPrograms + 8); n.ids[last].application.Name != "zebra" || n.unlisted[last] {
		t.Errorf("the cluster's application has no series: %+v", n.ids[last])
	}
	if len(n.ids) != MaxPrograms || len(n.unlisted) != 20 || len(n.attachments) != MaxAttachments || n.leftOut != 20+5*MaxPrograms-MaxAttachments {
		t.Errorf("%d programs, %d without series, %d attachments, %d left out", len(n.ids), len(n.unlisted), len(n.attachments), n.leftOut)
	}
	c := New(Options{})
	if others := c.add(map[uint32]cost.Total{1: {Runs: 1}, MaxPrograms + 1: {Runs: 2}, 9999: {Runs: 4}}, n); others != 1 || c.unmanaged.Runs != 4 {
		t.Errorf("%d programs of others, with %v runs", others, c.unmanaged.Runs)
	}
	first := scrape(t, all...)
	if got := first["skep_program_series_left_out"]; got != float64(n.leftOut) {
		t.Errorf("a scrape says that %v are left out", got)
	}
}

// TestCountersGoOnOverAnUpdate: a program has another id in a new version, and no counter falls. What no window saw adds nothing.
func TestCountersGoOnOverAnUpdate(t *testing.T) {
	c := New(Options{})
	web := program{of("web", "").Application, "count"}
	runs := func(id uint32, totals map[uint32]cost.Total) float64 {
		t.Helper()
		c.add(totals, nodeOf([]agent.ApplicationStatus{of("web", "Deployed", program1("count", id, on("xdp", agent.Attached, id)))}))
		return c.known[web].Runs
	}
	for _, step := range []struct {
		sentence string
		id       uint32
		totals   map[uint32]cost.Total
		want     float64
	}{
		{"before the first window", 1, nil, 0},
		{"a window", 1, map[uint32]cost.Total{1: {Runs: 100}, 7: {Runs: 10}}, 100},
		{"scraped again before the next one", 1, map[uint32]cost.Total{1: {Runs: 100}, 7: {Runs: 10}}, 100},
		{"another window", 1, map[uint32]cost.Total{1: {Runs: 150}, 7: {Runs: 30}}, 150},
		{"a new version, not measured yet", 2, map[uint32]cost.Total{1: {Runs: 150}, 7: {Runs: 30}}, 150},
		{"a new version that was measured", 2, map[uint32]cost.Total{2: {Runs: 25}, 7: {Runs: 30}}, 175},
	} {
		if got := runs(step.id, step.totals); got != step.want {
			t.Errorf("%s: %v runs, want %v", step.sentence, got, step.want)
		}
	}
	if c.unmanaged.Runs != 30 {
		t.Errorf("others have %v runs, want 30", c.unmanaged.Runs)
	}
	if c.add(nil, nodeOf(nil)); len(c.known) != 0 {
		t.Errorf("of applications that are gone there is %v", c.known)
	}
}

// TestAChainOfSeveralIsOfNone of them, and one of a single program is its own.
func TestAChainOfSeveralIsOfNone(t *testing.T) {
	n := nodeOf([]agent.ApplicationStatus{
		of("a", "Deployed", program1("one", 1, on("xdp", agent.Attached, 50))), of("b", "Deployed", program1("two", 2, on("xdp", agent.Attached, 50))),
		of("c", "Deployed", program1("three", 3, on("xdp", agent.Attached, 60))),
	})
	if got := n.ids[50]; got != (program{name: chain}) {
		t.Errorf("a chain of two is of %+v", got)
	}
	if got := n.ids[60]; got.application.Name != "c" || got.name != "three" {
		t.Errorf("a chain of one is of %+v", got)
	}
}

// TestAMapOfTwoProgramsCountsOnce for the first of them.
func TestAMapOfTwoProgramsCountsOnce(t *testing.T) {
	need.Kernel(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 1 << 20, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ids := map[uint32]program{}
	for _, name := range []string{"first", "second"} {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "GPL",
			Instructions: asm.Instructions{asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Imm(asm.R0, 0), asm.Return()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		ids[uint32(id)] = program{name: name}
	}
	got := memoryOf(ids)
	if first, second := got[program{name: "first"}], got[program{name: "second"}]; first < 1<<20 || second == 0 || second >= 1<<20 {
		t.Errorf("the first takes %d bytes, and the second %d; the map has 1 MiB", first, second)
	}
}

// TestMachineCodeIsSummed as kernels show it: 6.18 and 6.1 with packs of 2 MiB, and 5.15 without.
func TestMachineCodeIsSummed(t *testing.T) {
	for sentence, c := range map[string]struct {
		areas string
		pages uint64
	}{
		"nothing": {"", 0},
		"a pack, and what is no machine code": {"0x0-0x1    8192 bpf_prog_alloc_no_stats+0x39/0x230 pages=1 vmalloc N0=1\n" +
			"0x0-0x1 2097152 bpf_prog_pack_alloc+0x132/0x3a0 pages=512 vmalloc vpages N0=512\n0x0-0x1 20480 load_module+0x1/0x2 pages=4 vmalloc N0=4\n", 512},
		"two packs":              {strings.Repeat("0x0-0x1 2101248 alloc_new_pack+0x1/0x2 pages=512 vmalloc N0=512\n", 2), 1024},
		"each program by itself": {"0x0-0x1 8192 bpf_jit_alloc_exec+0x1/0x2 pages=1 vmalloc N0=1\n0x0-0x1 12288 bpf_jit_binary_alloc+0x1/0x2 pages=2 vmalloc\n", 3},
		"an area of others":      {"0x0-0x1 8192 vm_map_ram\n0x0-0x1    8192\n", 0},
	} {
		got, err := machineCode(strings.NewReader(c.areas))
		if err != nil || got != c.pages*4096 {
			t.Errorf("%s: %d bytes, %v; want %d pages", sentence, got, err, c.pages)
		}
	}
}
