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
// Each action takes some time of the test's clock.
func TestARevocationComesBeforeWhatIsLeftToDetach(t *testing.T) {
	needKernel(t)
	needLink(t, "tcx/ingress")
	quiet(t)
	w, now := newWorld(t), newClock()
	const pairs = 40
	for i := range pairs {
		veth(t, fmt.Sprint("many", i), fmt.Sprint("more", i))
	}
	var order []string
	many := w.version("1", v1alpha1.Attachment{Hook: "tcx/ingress", Interfaces: &v1alpha1.Interfaces{Names: []string{"many*", "more*"}}})
	many.UID, many.Application.Name = "uid-many", "many"
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
	w.give(a, many, revoked)
	until(t, "both to be attached", time.Minute, func() bool {
		a.Reconcile(t.Context())
		return w.linkPins(many.UID) == 2*pairs && w.linkPins(revoked.UID) == 1
	})
	ids := idsOf(a, many)
	last := idsOf(a, revoked)[0]
	reconcile := func() {
		if !a.ReconcileIfWoken(t.Context()) {
			a.Sweep(t.Context())
		}
	}
	w.give(a, w.tombstone(many))
	until(t, "the other to be unloaded", time.Minute, func() bool { reconcile(); return isUnloaded(a, revoked) })
	if runs(t, last) != 0 {
		t.Error("it is called unloaded, and runs")
	}
	if at := slices.Index(order, revoked.UID); at < 3 || at > 10 {
		t.Errorf("it was detached after %d links, want it soon after the 3 before which it was revoked", at)
	}
	until(t, "all to be unloaded", time.Minute, func() bool { reconcile(); return isUnloaded(a, many) })
	for _, id := range ids {
		if runs(t, id) != 0 {
			t.Errorf("link %d runs, and is called unloaded", id)
		}
	}
	w.leavesNothing()
}
