package agent_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// crowdOf are applications of one namespace that have a program in each of its pods, of which there is one, and some of another
// namespace with a pod.
func crowdOf(w *world.World, r *world.Runtime, applications, others int) (first *world.Pod, many, other []intent.Payload) {
	w.T.Helper()
	first = r.Start("crowd", "web", "app", nil)
	r.Start("team", "web", "app", nil)
	of := func(namespace string, i int) intent.Payload {
		p := world.OfTeam(w, namespace, "cgroup_skb", "cgroup_egress", v1alpha1.Attachment{Hook: "cgroup_skb/egress", Pods: &v1alpha1.Pods{}})
		p.UID, p.Application.Name = fmt.Sprintf("uid-%s-%02d", namespace, i), fmt.Sprint("app-", i)
		return p
	}
	for i := range applications {
		many = append(many, of("crowd", i))
	}
	for i := range others {
		other = append(other, of("team", i))
	}
	return first, many, other
}

// linksOf counts the links of applications in the file system.
func linksOf(w *world.World, all []intent.Payload) (n int) {
	for _, p := range all {
		n += world.LinkPins(w, p.UID)
	}
	return n
}

// onPinned is a log that is called, too, when a pin was made again: amid the decisions of a reconcile.
type onPinned struct {
	onAct
	pinned func()
}

func (h onPinned) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "pinned again what was removed" {
		h.pinned()
	}
	return h.onAct.Handle(ctx, r)
}

// TestARevocationComesBeforePlacesOfOthers has a namespace start many pods with a program in each, and an application of another
// one be revoked: before all of that is planned, amid the decisions, and amid the attaching. Each look at the test's clock takes
// some time.
func TestARevocationComesBeforePlacesOfOthers(t *testing.T) {
	need.Kernel(t)
	const applications, pods = 4, 50
	for sentence, c := range map[string]struct {
		after, most int
		decided     bool
	}{
		"before it is planned": {0, 0, false}, "amid the decisions": {0, 0, true}, "amid the attaching": {3, 10, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			w, r, now := world.New(t), world.NewRuntime(t), world.NewClock()
			first, many, other := crowdOf(w, r, applications, 2)
			revoked, unpinned := other[0], other[1]
			var a *agent.Agent
			var order []string
			var id uint32
			revoke := func() { w.Give(a, w.Tombstone(revoked)) }
			o := w.Options()
			o.Containers = r.Source
			o.Clock = func() time.Time { now.Forward(10 * time.Millisecond); return now.Now() }
			o.Log = slog.New(onPinned{func(_ plan.Verb, uid string) {
				if order = append(order, uid); len(order) == c.after && id != 0 {
					revoke()
				}
			}, func() {
				if c.decided {
					revoke()
				}
			}})
			a = w.Idle(o)
			w.Give(a, slices.Concat(many, other)...)
			world.Until(t, "all to run", time.Minute, func() bool {
				a.Reconcile(t.Context())
				return linksOf(w, many) == applications && linksOf(w, other) == len(other)
			})
			id = idsOf(a, revoked)[0]
			for _, pin := range world.Pins(w) {
				if strings.Contains(pin, unpinned.UID) {
					world.Must(t, os.Remove(pin))
				}
			}
			order = nil
			andOthers(first, pods-1)
			if c.after == 0 && !c.decided {
				revoke()
			}
			world.Until(t, "all to be attached", time.Minute, func() bool { a.Reconcile(t.Context()); return linksOf(w, many) == applications*pods })
			if at := slices.Index(order, revoked.UID); at < c.after || at > c.most || world.Runs(t, id) != 0 {
				t.Errorf("action %d of %d ended it, want one of %d to %d; link %d has program %d", at, len(order), c.after, c.most, id, world.Runs(t, id))
			}
		})
	}
}

// TestARevocationWaitsForNoLook at the node where the kernel ends a link by one call.
func TestARevocationWaitsForNoLook(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), world.NewRuntime(t)
	_, _, other := crowdOf(w, r, 0, 2)
	o := w.Options()
	o.Containers = r.Source
	a := w.Idle(o)
	w.Give(a, other...)
	world.Until(t, "them to run", time.Minute, func() bool { a.Reconcile(t.Context()); return linksOf(w, other) == len(other) })
	gone, stays := idsOf(a, other[0])[0], idsOf(a, other[1])[0]
	w.Give(a, w.Tombstone(other[0]))
	looked := false
	a.OnLook(func() {
		looked = true
		if world.Runs(t, gone) != 0 || world.Runs(t, stays) == 0 {
			t.Errorf("at the look, what was revoked has program %d, and the other %d", world.Runs(t, gone), world.Runs(t, stays))
		}
	})
	if a.Reconcile(t.Context()); !looked {
		t.Error("it did not look")
	}
}

// TestARevocationEndsWhatLostItsPins: what someone removed is not made again before it ends.
func TestARevocationEndsWhatLostItsPins(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a := w.Idle(w.Options())
	p := w.Intent("raw", "raw_tp_count", world.RawProgram())
	w.Give(a, p)
	world.Until(t, "it to run", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, p) })
	id := idsOf(a, p)[0]
	for _, pin := range world.Pins(w) {
		world.Must(t, os.Remove(pin))
	}
	w.Give(a, w.Tombstone(p))
	a.Reconcile(t.Context())
	if world.Runs(t, id) != 0 {
		t.Error("it runs after the reconcile that knows of its revocation")
	}
	world.Until(t, "it to be unloaded", time.Minute, func() bool { a.Reconcile(t.Context()); return isUnloaded(a, p) })
	w.LeavesNothing()
}

// BenchmarkRevocationAmidPlaces revokes applications of one namespace while another one has programs in 8,000 places: while these
// are attached, at rest, and while they are ended. It reports how long each takes until its program runs no more, and how long all of the
// other namespace's takes.
func BenchmarkRevocationAmidPlaces(b *testing.B) {
	const applications, pods = 32, 250
	spent := map[string]time.Duration{}
	for b.Loop() {
		w, r := world.New(b), world.NewRuntime(b)
		first, many, other := crowdOf(w, r, applications, 3)
		andOthers(first, pods-1)
		o := w.Options()
		o.Log, o.Containers, o.SweepInterval = slog.New(slog.NewTextHandler(io.Discard, nil)), r.Source, time.Second
		a, stop := w.Run(o)
		w.Must(a, other...)
		revoke := func(amid string, p intent.Payload) {
			id, began := idsOf(a, p)[0], time.Now()
			w.Give(a, w.Tombstone(p))
			world.Until(b, "it to be revoked", time.Minute, func() bool { return world.Runs(b, id) == 0 })
			spent[amid] += time.Since(began)
		}
		began := time.Now()
		w.Give(a, many...)
		world.Until(b, "a part to be attached", time.Minute, func() bool { return linksOf(w, many) > applications*pods/4 })
		revoke("attaching-ms", other[0])
		if linksOf(w, many) == applications*pods {
			b.Fatal("all were attached already")
		}
		world.Until(b, "all to be attached", time.Minute, func() bool { return linksOf(w, many) == applications*pods })
		spent["all-attached-ms"] += time.Since(began)
		w.Must(a)
		revoke("rest-ms", other[1])
		began = time.Now()
		for _, p := range many {
			w.Give(a, w.Tombstone(p))
		}
		revoke("ending-ms", other[2])
		world.Until(b, "all to be unloaded", 5*time.Minute, func() bool { return linksOf(w, many) == 0 })
		spent["all-ended-ms"] += time.Since(began)
		stop()
	}
	for unit, took := range spent {
		b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), unit)
	}
}
