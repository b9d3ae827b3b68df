package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// onAct is a log that is called for each link that was attached or detached, with the application's UID.
type onAct func(verb plan.Verb, uid string)

func (onAct) Enabled(context.Context, slog.Level) bool { return true }

func (h onAct) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if verb, action, _ := strings.Cut(a.Value.String(), " "); r.Message == "act" && a.Key == "action" {
			uid, _, _ := strings.Cut(action, "@")
			h(plan.Verb(verb), uid)
		}
		return true
	})
	return nil
}

func (h onAct) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h onAct) WithGroup(string) slog.Handler { return h }

// TestARevocationComesBeforeWhatIsLeftToDetach has a tenant unload links that are detached in the
// loop, of which the kernel ends one after the other, and another application be revoked amid that.
// Each action takes some time of the test's clock. A tenant has one turn, however many applications
// it has.
func TestARevocationComesBeforeWhatIsLeftToDetach(t *testing.T) {
	t.Run("of one application", func(t *testing.T) { revokeAmid(t, 1) })
	t.Run("of many applications", func(t *testing.T) { revokeAmid(t, 20) })
}

func revokeAmid(t *testing.T, applications int) {
	need.Kernel(t)
	world.NeedLink(t, "tcx/ingress")
	world.Quiet(t)
	w, now := world.New(t), world.NewClock()
	const pairs = 40
	for i := range pairs {
		world.Veth(t, fmt.Sprint("many", i), fmt.Sprint("more", i))
	}
	var order []string
	var many []intent.Payload
	for i := range applications {
		names := []string{fmt.Sprint("many", i), fmt.Sprint("more", i)}
		if applications == 1 {
			names = []string{"many*", "more*"}
		}
		p := world.Version(w, "1", v1alpha1.Attachment{Hook: "tcx/ingress", Interfaces: &v1alpha1.Interfaces{Names: names}})
		p.UID, p.Application = fmt.Sprintf("uid-many-%02d", i), v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "many", Name: fmt.Sprint("many-", i)}
		many = append(many, p)
	}
	revoked := world.Version(w, "1", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter"})
	revoked.UID, revoked.Application.Name = "uid-revoked", "revoked"
	var a *agent.Agent
	o := w.Options()
	o.Clock = func() time.Time { now.Forward(10 * time.Millisecond); return now.Now() }
	o.Log = slog.New(onAct(func(verb plan.Verb, uid string) {
		if verb != plan.Detach {
			return
		}
		if order = append(order, uid); len(order) == 3 {
			w.Give(a, w.Tombstone(revoked))
		}
	}))
	a, err := agent.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	w.Give(a, append(many, revoked)...)
	world.Until(t, "all to be attached", time.Minute, func() bool {
		a.Reconcile(t.Context())
		for _, p := range many {
			if world.LinkPins(w, p.UID) < 2 {
				return false
			}
		}
		return (applications > 1 || world.LinkPins(w, many[0].UID) == 2*pairs) && world.LinkPins(w, revoked.UID) == 1
	})
	var ids []uint32
	for _, p := range many {
		ids = append(ids, idsOf(a, p)...)
	}
	last := idsOf(a, revoked)[0]
	reconcile := func() {
		if !a.ReconcileIfWoken(t.Context()) {
			a.Sweep(t.Context())
		}
	}
	for _, p := range many {
		w.Give(a, w.Tombstone(p))
	}
	world.Until(t, "the other to be unloaded", time.Minute, func() bool { reconcile(); return isUnloaded(a, revoked) })
	if world.Runs(t, last) != 0 {
		t.Error("it is called unloaded, and runs")
	}
	if at := slices.Index(order, revoked.UID); at < 3 || at > 10 {
		t.Errorf("it was detached after %d links, want it soon after the 3 before which it was revoked", at)
	}
	world.Until(t, "all to be unloaded", time.Minute, func() bool {
		reconcile()
		return !slices.ContainsFunc(many, func(p intent.Payload) bool { return !isUnloaded(a, p) })
	})
	for _, id := range ids {
		if world.Runs(t, id) != 0 {
			t.Errorf("link %d runs, and is called unloaded", id)
		}
	}
	w.LeavesNothing()
}

// TestARevocationTakesASecondWhateverElseFails: nothing can be fetched, no chain can be loaded, and a load of another one takes seconds,
// all the while. The machine may have other work for a second, but not each time.
func TestARevocationTakesASecondWhateverElseFails(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	const times, most = 3, time.Second
	w := world.New(t)
	counts := func(namespace, name string) intent.Payload {
		return world.Tenant(w.Intent("counts", "xdp_count", v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "cn0")}), namespace, name, 1, 1)
	}
	world.Veth(t, "cn0", "cn1")
	o, hangs := w.Options(), make(chan struct{})
	t.Cleanup(func() { close(hangs) })
	fetch, lost := o.Fetch, "sha256:"+strings.Repeat("0", 64)
	o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
		if digest != lost {
			return fetch(ctx, digest)
		}
		select {
		case <-hangs:
		case <-ctx.Done():
		}
		return nil, errors.New("the registry does not answer")
	}
	a := w.StartWith(o)
	var revoked, fail []intent.Payload
	for i := range times {
		namespace := fmt.Sprint("team-", i)
		revoked = append(revoked, counts(namespace, fmt.Sprint("revoked-", i)))
		p := world.Tenant(w.Intent("fails", "raw_tp_count", world.RawProgram()), namespace, "fetched", 1, 1)
		p.ObjectDigest = lost
		fail = append(fail, p, counts(namespace, "joins"))
	}
	w.Must(a, revoked...)
	a.RefuseChains(func([]string) error { return unix.EPERM })
	w.Give(a, fail...)
	startSlow(w, a)
	var took []time.Duration
	for _, p := range revoked {
		if !runsInChain(t, a, p) {
			t.Fatalf("%s does not run", p.Application)
		}
		began := time.Now()
		w.Give(a, w.Tombstone(p))
		world.Until(t, "it to run no more", time.Minute, func() bool { return !runsInChain(t, a, p) })
		took = append(took, time.Since(began))
	}
	t.Logf("%v", took)
	if !loads(w, a, "slow") || world.StatusOf(a, "fetched").Conditions[0].Reason != "Fetching" {
		t.Errorf("nothing was in its way any more: %+v", a.Status())
	}
	slices.Sort(took)
	if took[times/2] > most {
		t.Errorf("revocations took %v, want %v", took, most)
	}
}

// runsInChain reports whether an application is in a chain, and not switched off there.
func runsInChain(t *testing.T, a *agent.Agent, p intent.Payload) bool {
	t.Helper()
	chains, err := a.Chains()
	world.Must(t, err)
	return slices.ContainsFunc(chains, func(c agent.ChainStatus) bool {
		return slices.ContainsFunc(c.Members, func(m agent.MemberStatus) bool { return m.Application == p.Application.String() && !m.SwitchedOff })
	})
}
