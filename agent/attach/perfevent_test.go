package attach

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/recommended"
)

func TestListsOfCPUsAreRead(t *testing.T) {
	for list, want := range map[string][]int{"0": {0}, "0-3": {0, 1, 2, 3}, "0-1,4,6-7": {0, 1, 4, 6, 7}, "": nil, "0-": nil, "a": nil, "0-99999999999": nil} {
		got, err := parseCPUs(list)
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("parseCPUs(%q) = %v, %v; want %v", list, got, err, want)
		}
	}
}

func TestWhatSamplesMoreOftenThanTheNodeAllowsIsSaid(t *testing.T) {
	for sentence, c := range map[string]struct {
		target plan.Target
		want   string
	}{
		"a frequency as high as may be": {plan.Target{Event: "cpu-clock", Frequency: 1000}, ""},
		"a frequency above it": {
			plan.Target{Event: "cpu-clock", Frequency: 1001}, "perfEvent.frequency samples cpu-clock 1001 times a second, and this node allows 1000 ",
		},
		"the frequency of another event":     {plan.Target{Event: "page-faults", Frequency: 2000}, "perfEvent.frequency samples page-faults 2000 times"},
		"a clock's period as short as it is": {plan.Target{Event: "task-clock", Period: 1_000_000}, ""},
		"a clock's period shorter than that": {plan.Target{Event: "task-clock", Period: 500_000}, "perfEvent.period samples task-clock 2000 times a second"},
		"a period of events":                 {plan.Target{Event: "page-faults", Period: 1}, ""},
	} {
		event, _ := hook.LookupEvent(c.target.Event)
		err := tooOften(event, c.target, 1000)
		if c.want == "" && err != nil ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "perf_event_max_sample_rate")) {
			t.Errorf("%s: %v, want %q", sentence, err, c.want)
		}
	}
}

// TestTheSampleRateIsRaisedByTheCommandOfTheMessage: the rate is the machine's, and is put back.
func TestTheSampleRateIsRaisedByTheCommandOfTheMessage(t *testing.T) {
	need.Kernel(t)
	was, err := maxSampleRate()
	if err != nil {
		t.Fatal(err)
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.PerfEvent, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	r := Request{Program: p, Attachment: plan.Attachment{Hook: "perf_event", Target: plan.Target{Event: "cpu-clock", Frequency: int32(was) + 1000}}}
	t.Cleanup(func() {
		if err := os.WriteFile("/proc/sys/kernel/perf_event_max_sample_rate", []byte(strconv.FormatInt(was, 10)), 0); err != nil {
			t.Error(err)
		}
	})
	if _, err = To(r); err == nil {
		t.Fatal("it samples more often than the node allows")
	}
	recommended.Run(t, err.Error(), "sysctl -w kernel.perf_event_max_sample_rate=%d")
	l, err := To(r)
	if err != nil {
		t.Fatalf("after that: %v", err)
	}
	_ = l.Close()
}

func TestEventsHaveTheKernelsNumbers(t *testing.T) {
	for name, want := range map[string][2]uint64{
		"cpu-clock": {unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_CPU_CLOCK}, "task-clock": {unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_TASK_CLOCK},
		"page-faults": {unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_PAGE_FAULTS}, "context-switches": {unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_CONTEXT_SWITCHES},
		"cpu-migrations": {unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_CPU_MIGRATIONS}, "minor-faults": {unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_PAGE_FAULTS_MIN},
		"major-faults":     {unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_PAGE_FAULTS_MAJ},
		"alignment-faults": {unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_ALIGNMENT_FAULTS},
		"emulation-faults": {unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_EMULATION_FAULTS}, "cgroup-switches": {unix.PERF_TYPE_SOFTWARE, 11},
		"cpu-cycles": {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES}, "instructions": {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_INSTRUCTIONS},
		"cache-references":    {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CACHE_REFERENCES},
		"cache-misses":        {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CACHE_MISSES},
		"branch-instructions": {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_BRANCH_INSTRUCTIONS},
		"branch-misses":       {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_BRANCH_MISSES},
		"bus-cycles":          {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_BUS_CYCLES}, "ref-cycles": {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_REF_CPU_CYCLES},
		"stalled-cycles-frontend": {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_STALLED_CYCLES_FRONTEND},
		"stalled-cycles-backend":  {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_STALLED_CYCLES_BACKEND},
	} {
		if e, ok := hook.LookupEvent(name); !ok || [2]uint64{uint64(e.Type), e.Config} != want {
			t.Errorf("%s is %+v, want %v", name, e, want)
		}
	}
	if n := len(hook.Events()); n != 20 {
		t.Errorf("there are %d events, and 20 in this test", n)
	}
}

func TestThreadsOfAProcessAreThoseThatRun(t *testing.T) {
	me := int32(os.Getpid())
	all, err := OnEvent(plan.Attachment{Target: plan.Target{Event: "cpu-clock", Frequency: 9, PID: me}})
	if !seesNodesPIDs() {
		t.Skip("SKIPPED: this test does not see the node's processes")
	}
	if err != nil {
		t.Fatal(err)
	}
	began, err := beganAt(me, me)
	if err != nil || began == 0 {
		t.Errorf("this process began at %d, %v", began, err)
	}
	if !slices.ContainsFunc(all, func(a plan.Attachment) bool { return a.Thread == me && a.Began == began }) {
		t.Errorf("the threads of process %d are %+v", me, all)
	}
	for _, gone := range []plan.Attachment{{Target: plan.Target{PID: 1 << 30}}} {
		if _, err := OnEvent(gone); !errors.Is(err, ErrTarget) {
			t.Errorf("a process that there is not: %v", err)
		}
	}
}
