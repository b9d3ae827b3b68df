package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

// onDetach is a log that is called for each link that was detached, with the application's UID.
type onDetach func(uid string)

func (onDetach) Enabled(context.Context, slog.Level) bool { return true }

func (h onDetach) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if action, is := strings.CutPrefix(a.Value.String(), "detach "); is && r.Message == "act" {
			uid, _, _ := strings.Cut(action, "@")
			h(uid)
		}
		return true
	})
	return nil
}

func (h onDetach) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h onDetach) WithGroup(string) slog.Handler { return h }

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
	needLink(t, "tcx/ingress")
	quiet(t)
	w, now := newWorld(t), newClock()
	const pairs = 40
	for i := range pairs {
		veth(t, fmt.Sprint("many", i), fmt.Sprint("more", i))
	}
	var order []string
	var many []intent.Payload
	for i := range applications {
		names := []string{fmt.Sprint("many", i), fmt.Sprint("more", i)}
		if applications == 1 {
			names = []string{"many*", "more*"}
		}
		p := w.version("1", v1alpha1.Attachment{Hook: "tcx/ingress", Interfaces: &v1alpha1.Interfaces{Names: names}})
		p.UID, p.Application = fmt.Sprintf("uid-many-%02d", i), v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "many", Name: fmt.Sprint("many-", i)}
		many = append(many, p)
	}
	revoked := w.version("1", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter"})
	revoked.UID, revoked.Application.Name = "uid-revoked", "revoked"
	var a *agent.Agent
	o := w.options()
	o.Clock = func() time.Time { now.forward(10 * time.Millisecond); return now.Now() }
	o.Log = slog.New(onDetach(func(uid string) {
		if order = append(order, uid); len(order) == 3 {
			w.give(a, w.tombstone(revoked))
		}
	}))
	a, err := agent.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	w.give(a, append(many, revoked)...)
	until(t, "all to be attached", time.Minute, func() bool {
		a.Reconcile(t.Context())
		for _, p := range many {
			if w.linkPins(p.UID) < 2 {
				return false
			}
		}
		return (applications > 1 || w.linkPins(many[0].UID) == 2*pairs) && w.linkPins(revoked.UID) == 1
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
		w.give(a, w.tombstone(p))
	}
	until(t, "the other to be unloaded", time.Minute, func() bool { reconcile(); return isUnloaded(a, revoked) })
	if runs(t, last) != 0 {
		t.Error("it is called unloaded, and runs")
	}
	if at := slices.Index(order, revoked.UID); at < 3 || at > 10 {
		t.Errorf("it was detached after %d links, want it soon after the 3 before which it was revoked", at)
	}
	until(t, "all to be unloaded", time.Minute, func() bool {
		reconcile()
		return !slices.ContainsFunc(many, func(p intent.Payload) bool { return !isUnloaded(a, p) })
	})
	for _, id := range ids {
		if runs(t, id) != 0 {
			t.Errorf("link %d runs, and is called unloaded", id)
		}
	}
	w.leavesNothing()
}
