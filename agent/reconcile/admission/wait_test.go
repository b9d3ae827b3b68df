package admission_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// hangs is a source of objects that never comes back with some, and fails with
// others at the first time.
type hangs struct {
	w  *world.World
	mu sync.Mutex
	// hang and fail are by digest.
	hang, fail map[string]bool
	// waits are those that hang now.
	waits map[string]bool
}

func hanging(w *world.World) *hangs {
	return &hangs{w: w, hang: map[string]bool{}, fail: map[string]bool{}, waits: map[string]bool{}}
}

// hold has objects hang from now on.
func (h *hangs) hold(all ...intent.Payload) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range all {
		h.hang[p.ObjectDigest] = true
	}
}

func (h *hangs) fetch(ctx context.Context, digest string) ([]byte, error) {
	h.mu.Lock()
	fail, hang := h.fail[digest], h.hang[digest]
	delete(h.fail, digest)
	h.mu.Unlock()
	if fail {
		return nil, errors.New("gone")
	}
	if hang {
		h.waiting(digest, true)
		defer h.waiting(digest, false)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.w.Fetch(ctx, digest)
}

func (h *hangs) waiting(digest string, now bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waits[digest] = now
}

// isOnItsWay reports whether an object hangs now.
func (h *hangs) isOnItsWay(p intent.Payload) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waits[p.ObjectDigest]
}

// TestNobodyWaitsForWhatFailedBefore has an older application of another namespace
// fail, and hang at each attempt after that.
func TestNobodyWaitsForWhatFailedBefore(t *testing.T) {
	need.Kernel(t)
	for sentence, again := range map[string]func(w *world.World, p intent.Payload) intent.Payload{
		"the same version": func(_ *world.World, p intent.Payload) intent.Payload { return p },
		"a newer version": func(w *world.World, p intent.Payload) intent.Payload {
			w.Serial++
			p.Serial, p.ObjectDigest = w.Serial, w.Object(world.ProgramsObject("xdp_gpl"))
			return p
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fr0", "fr1")
			old := world.Tenant(world.XDP(w, "xdp_count", "count_packets", "fr0"), "area", "old", 1, 1)
			young := world.Tenant(world.XDP(w, "xdp_pass", "xdp_pass", "fr0"), "home", "young", 2, 500)
			from, now := hanging(w), world.NewClock()
			from.fail[old.ObjectDigest] = true
			o := w.Options()
			o.Clock, o.Fetch, o.FetchTimeout, o.BackOff = now.Now, from.fetch, time.Hour, agent.BackOff{First: time.Minute, Most: time.Minute}
			a := w.Idle(o)
			if err := a.Accept(w.Seal(old)); err != nil {
				t.Fatal(err)
			}
			world.Until(t, "the older one to fail", time.Minute, func() bool { a.Reconcile(t.Context()); return world.ErrorOf(a, old) != "" })
			next := again(w, old)
			from.hold(old, next)
			now.Forward(10 * time.Minute)
			a.Batch(func() {
				for _, p := range []intent.Payload{next, young} {
					if err := a.Accept(w.Seal(p)); err != nil {
						t.Fatal(err)
					}
				}
			})
			world.Until(t, "the younger one to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, young) })
			if !from.isOnItsWay(next) {
				t.Errorf("the older one is not on its way: %+v", world.StatusOf(a, "old").Conditions[0])
			}
		})
	}
}

// TestNobodyWaitsForEver has an older application of another namespace change again
// and again, each time to what never comes.
func TestNobodyWaitsForEver(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "fr0", "fr1")
	old := world.Tenant(world.XDP(w, "xdp_count", "count_packets", "fr0"), "area", "old", 1, 1)
	young := world.Tenant(world.XDP(w, "xdp_pass", "xdp_pass", "fr0"), "home", "young", 2, 500)
	from, now := hanging(w), world.NewClock()
	o := w.Options()
	o.Clock, o.Fetch, o.FetchTimeout = now.Now, from.fetch, time.Hour
	a := w.Idle(o)
	hand := func(all ...intent.Payload) {
		t.Helper()
		a.Batch(func() {
			for _, p := range all {
				if err := a.Accept(w.Seal(p)); err != nil {
					t.Fatal(err)
				}
			}
		})
		a.Reconcile(t.Context())
	}
	from.hold(old)
	hand(old, young)
	world.Until(t, "the younger one to wait", time.Minute, func() bool {
		a.Reconcile(t.Context())
		return world.StatusOf(a, "young").Conditions[0].Reason == "Queued"
	})
	for i := range 6 {
		if world.At(a, young) != "" {
			t.Fatalf("it did not wait for version %d of the older one", i)
		}
		now.Forward(20 * time.Minute)
		w.Serial++
		old.Serial, old.ObjectDigest = w.Serial, w.Object(append(world.ProgramsObject("xdp_count"), byte(i)))
		from.hold(old)
		hand(old)
	}
	world.Until(t, "the younger one to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, young) })
	if s := world.StatusOf(a, "old"); s.Conditions[0].Reason != "Fetching" {
		t.Errorf("the older one is not on its way: %+v", s.Conditions[0])
	}
}

// TestWhatRanGivesOnlyItselfAClaim has an application of another namespace run nearly
// all maps of an interface, and come back from a reboot as a version that never comes.
func TestWhatRanGivesOnlyItselfAClaim(t *testing.T) {
	need.Kernel(t)
	for sentence, failed := range map[string]bool{"it is on its way": false, "it failed": true} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fr0", "fr1")
			large := world.Tenant(maps62(w, "fr0"), "area", "large", 2, 1)
			small := world.Tenant(world.XDP(w, "xdp_pass", "xdp_pass", "fr0"), "home", "small", 1, 500)
			from := hanging(w)
			o := w.Options()
			o.Node, o.NamespaceShare, o.Fetch, o.FetchTimeout = "n", 100, from.fetch, time.Hour
			a, err := agent.New(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Accept(w.Seal(large), w.Seal(small)); err != nil {
				t.Fatal(err)
			}
			world.Until(t, "both to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, large) && world.IsIn(a, small) })
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(w.BPFFS); err != nil {
				t.Fatal(err)
			}
			recreate(t, "fr0", "fr1")
			w.Serial++
			large.Serial, large.ObjectDigest = w.Serial, w.Object(append(maps62Object, 0))
			from.hold(large)
			from.fail[large.ObjectDigest] = failed
			small = world.Tenant(world.XDP(w, "xdp_maps", "xdp_maps", "fr0"), "home", "small", 1, 500)
			a = w.Idle(o)
			a.Batch(func() {
				for _, p := range []intent.Payload{large, small} {
					if err := a.Accept(w.Seal(p)); err != nil {
						t.Fatal(err)
					}
				}
			})
			world.Until(t, "the small one to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, small) })
		})
	}
}
