package hooks_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// sampled is an attachment to a perf event.
func sampled(e v1alpha1.PerfEvent) v1alpha1.Attachment {
	return v1alpha1.Attachment{Hook: "perf_event", PerfEvent: &e}
}

func TestAPerfEventFiresOnEveryCPU(t *testing.T) {
	a := fires(t, sampled(v1alpha1.PerfEvent{Event: "cpu-clock", Frequency: 99}), func() {})
	links := a.Status()[0].Programs[0].Links
	if len(links) != runtime.NumCPU() {
		t.Errorf("%d links on %d CPUs", len(links), runtime.NumCPU())
	}
	for i, l := range links {
		if want := fmt.Sprintf("cpu-clock 99 Hz (CPU %d)", i); l.Target != want || l.State != agent.Attached {
			t.Errorf("link %+v, want %s", l, want)
		}
	}
}

func TestAPerfEventFiresInOneProcess(t *testing.T) {
	pid := world.SingleThread(t)
	a := fires(t, sampled(v1alpha1.PerfEvent{Event: "context-switches", Period: 10, PID: pid}), func() {})
	_, l := world.One(t, a)
	if want := fmt.Sprintf("context-switches every 10 (pid %d, thread %[1]d)", pid); l.Target != want {
		t.Errorf("link = %+v, want %s", l, want)
	}
	world.End(t, pid)
	world.Until(t, "the link to go with the process", time.Minute, func() bool {
		a.Reconcile(t.Context())
		return world.Runs(t, l.ID) == 0
	})
	if links := a.Status()[0].Programs[0].Links; len(links) != 1 || links[0].State != agent.Failed ||
		!strings.Contains(links[0].Error, fmt.Sprintf("find process %d: ", pid)) {
		t.Errorf("after the process ended: %+v", links)
	}
}

func TestACounterThatTheMachineLacksIsUnsupported(t *testing.T) {
	if _, err := os.Stat("/sys/bus/event_source/devices/cpu"); !errors.Is(err, fs.ErrNotExist) {
		t.Skipf("SKIPPED: this machine's processor has counters (%v)", err)
	}
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	err := w.Accept(a, world.Version(w, "1", sampled(v1alpha1.PerfEvent{Event: "cpu-cycles", Frequency: 99})))
	want := (&attach.LackingError{
		Part: "counts no cpu-cycles: the machine has no such counter, as is usual in a virtual machine; name an event of the kernel, such as cpu-clock",
	}).Error()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the agent says %v, not %q", err, want)
	}
}
