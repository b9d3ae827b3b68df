package agent_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

// placed makes an agent whose profile is given, and counts what it fetches. The
// test makes its turns.
func (w *world) placed(profile v1alpha1.KernelProfile) (*agent.Agent, *atomic.Int32) {
	w.t.Helper()
	o, fetched := w.options(), new(atomic.Int32)
	o.Profile = &profile
	o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
		fetched.Add(1)
		return w.fetch(ctx, digest)
	}
	return w.idle(o), fetched
}

// turns hands over an intent and has the agent go round a few times; it returns
// what is told of the application, the same each time.
func (w *world) turns(a *agent.Agent, p intent.Payload) agent.ApplicationStatus {
	w.t.Helper()
	if err := a.Accept(w.seal(p)); err != nil {
		w.t.Fatal(err)
	}
	var last agent.ApplicationStatus
	for i := range 3 {
		a.Reconcile(w.t.Context())
		now := a.Status()[0]
		if i > 0 && (now.Error != last.Error || now.Revision != last.Revision || now.Unsupported != last.Unsupported) {
			w.t.Errorf("turn %d tells %+v, before %+v", i, now, last)
		}
		last = now
	}
	return last
}

func TestWhatTheNodesKernelLacksIsNeitherFetchedNorTried(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	a, fetched := w.placed(v1alpha1.KernelProfile{Release: "6.1.0", Hooks: []string{"raw_tp"}, ProgramTypes: []string{"RawTracepoint"}})
	foreign := v1alpha1.Program{Name: "count_packets", Attach: on("xdp", "lo")}

	p := w.intent("app", "xdp_count", foreign)
	is := w.turns(a, p)
	if want := "kernel 6.1.0 has no hook xdp, program type XDP"; !is.Unsupported || is.Error != want || is.Revision != "" {
		t.Errorf("unsupported %v: %q, runs %q; want %q", is.Unsupported, is.Error, is.Revision, want)
	}
	if n := fetched.Load(); n != 0 {
		t.Errorf("fetched %d times", n)
	}

	p = w.intent("app", "raw_tp_count", rawProgram())
	before := w.turns(a, p)
	if before.Error != "" || before.Revision == "" || before.Unsupported {
		t.Fatalf("what the kernel has is told so: %+v", before)
	}
	p = w.intent("app", "xdp_count", foreign)
	if is = w.turns(a, p); !is.Unsupported || is.Revision != before.Revision || is.Programs[0].Links[0].ID != before.Programs[0].Links[0].ID {
		t.Errorf("the version before is %+v, it was %+v", is, before)
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("fetched %d times, want once for what runs", n)
	}
}

func TestWhatAnObjectNeedsIsFoundOutOnce(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	a, fetched := w.placed(v1alpha1.KernelProfile{Release: "6.1.0", MapTypes: []string{"Hash"}})
	is := w.turns(a, w.intent("app", "raw_tp_count", rawProgram()))
	if want := "kernel 6.1.0 has no map type Array, map type PerCPUArray"; !is.Unsupported || is.Error != want || is.Revision != "" {
		t.Errorf("unsupported %v: %q, runs %q; want %q", is.Unsupported, is.Error, is.Revision, want)
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
}
