package decide_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// placed makes an agent whose profile is given, and counts what it fetches. The
// test makes its turns.
func placed(w *world.World, profile v1alpha1.KernelProfile) (*agent.Agent, *atomic.Int32) {
	w.T.Helper()
	o, fetched := w.Options(), new(atomic.Int32)
	o.Profile = &profile
	o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
		fetched.Add(1)
		return w.Fetch(ctx, digest)
	}
	return w.Idle(o), fetched
}

// afterATurn hands over an intent and has the agent go round a few times; it returns
// what is told of the application, the same each time.
func afterATurn(w *world.World, a *agent.Agent, p intent.Payload) agent.ApplicationStatus {
	w.T.Helper()
	if err := a.Accept(w.Seal(p)); err != nil {
		w.T.Fatal(err)
	}
	var last agent.ApplicationStatus
	for i := range 3 {
		a.Reconcile(w.T.Context())
		now := a.Status()[0]
		if i > 0 && (now.Error != last.Error || now.Revision != last.Revision || now.Unsupported != last.Unsupported) {
			w.T.Errorf("turn %d tells %+v, before %+v", i, now, last)
		}
		last = now
	}
	return last
}

func TestWhatTheNodesKernelLacksIsNeitherFetchedNorTried(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, fetched := placed(w, v1alpha1.KernelProfile{Release: "6.1.0", Hooks: []string{"raw_tp"}, ProgramTypes: []string{"RawTracepoint"}})
	foreign := v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "lo")}

	p := w.Intent("app", "xdp_count", foreign)
	is := afterATurn(w, a, p)
	if want := "kernel 6.1.0 has no hook xdp, program type XDP"; !is.Unsupported || is.Error != want || is.Revision != "" {
		t.Errorf("unsupported %v: %q, runs %q; want %q", is.Unsupported, is.Error, is.Revision, want)
	}
	if n := fetched.Load(); n != 0 {
		t.Errorf("fetched %d times", n)
	}

	p = w.Intent("app", "raw_tp_count", world.RawProgram())
	before := afterATurn(w, a, p)
	if before.Error != "" || before.Revision == "" || before.Unsupported {
		t.Fatalf("what the kernel has is told so: %+v", before)
	}
	p = w.Intent("app", "xdp_count", foreign)
	if is = afterATurn(w, a, p); !is.Unsupported || is.Revision != before.Revision || is.Programs[0].Links[0].ID != before.Programs[0].Links[0].ID {
		t.Errorf("the version before is %+v, it was %+v", is, before)
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("fetched %d times, want once for what runs", n)
	}
}

func TestWhatAnObjectNeedsIsFoundOutOnce(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, fetched := placed(w, v1alpha1.KernelProfile{Release: "6.1.0", MapTypes: []string{"Hash"}})
	is := afterATurn(w, a, w.Intent("app", "raw_tp_count", world.RawProgram()))
	if want := "kernel 6.1.0 has no map type Array, map type PerCPUArray"; !is.Unsupported || is.Error != want || is.Revision != "" {
		t.Errorf("unsupported %v: %q, runs %q; want %q", is.Unsupported, is.Error, is.Revision, want)
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
}
