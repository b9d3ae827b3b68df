package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// troubled is an agent on a node where all that may fail does, and two applications that run there: the first is a member of
// an XDP chain that cannot be loaded without it, and the second has a program of its own. The verifier does not
// answer, twenty applications have no object, and the node cannot be looked at.
func troubled(w *world.World, o agent.Options) (a *agent.Agent, member, alone intent.Payload) {
	w.T.Helper()
	world.Veth(w.T, "cn0", "cn1")
	a = w.Idle(o)
	member = world.Member(w, "gone", "xdp_count", "count_packets", 2)
	alone = w.Intent("alone", "raw_tp_count", world.RawProgram())
	w.Give(a, member, alone, world.Member(w, "stays", "xdp_pass", "xdp_pass", 1))
	world.Until(w.T, "both to run", time.Minute, func() bool { a.Reconcile(w.T.Context()); return world.IsIn(a, member) && world.IsIn(a, alone) })
	for i := range 20 {
		p := world.Tenant(w.Intent(fmt.Sprint("lost-", i), "raw_tp_count", world.RawProgram()), "lost", fmt.Sprint("lost-", i), 1, 1)
		p.ObjectDigest = fmt.Sprintf("sha256:%064d", i)
		w.Give(a, p)
	}
	busy := world.Tenant(slow(w), "busy", "slow", 1, 1)
	let := a.HoldLoads(busy.UID)
	w.T.Cleanup(let)
	w.Give(a, busy)
	world.Until(w.T, "the verifier to be busy", time.Minute, func() bool { a.Reconcile(w.T.Context()); return a.IsLoading() })
	a.RefuseChains(func([]string) error { return os.ErrPermission })
	a.FailLooks(errors.New("dump interfaces: no buffer space available"))
	a.Reconcile(w.T.Context())
	return a, member, alone
}

// once is how long a reconcile takes that waits for no load.
func once(a *agent.Agent) time.Duration {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	began := time.Now()
	a.Reconcile(ctx)
	return time.Since(began)
}

// TestARevocationNeedsOneReconcileWhateverFails: none of the two runs after the first reconcile that knows of it.
func TestARevocationNeedsOneReconcileWhateverFails(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, member, alone := troubled(w, w.Options())
	link := world.LinkOf(t, a, "alone").ID
	w.Give(a, w.Tombstone(member), w.Tombstone(alone))
	t.Logf("it took %s", once(a))
	if got := stateOf(t, a, "gone"); got != agent.SwitchedOff {
		t.Errorf("the member of the chain is %s", got)
	}
	if world.Runs(t, link) != 0 {
		t.Error("the other one runs still")
	}
	if !a.IsLoading() {
		t.Error("the verifier has nothing to do: the test shows nothing")
	}
}

// BenchmarkRevocation revokes two applications where all that may fail does, and reports how long the reconcile takes that
// ends them, beside how long such a node takes for one that ends nothing.
func BenchmarkRevocation(b *testing.B) {
	var ends, idle time.Duration
	for b.Loop() {
		w := world.New(b)
		o := w.Options()
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
		a, member, alone := troubled(w, o)
		idle += once(a)
		w.Give(a, w.Tombstone(member), w.Tombstone(alone))
		ends += once(a)
		cn0, err := netlink.LinkByName("cn0")
		if err = errors.Join(err, netlink.LinkDel(cn0)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(ends.Microseconds())/float64(b.N)/1000, "ends-ms")
	b.ReportMetric(float64(idle.Microseconds())/float64(b.N)/1000, "idle-ms")
}
