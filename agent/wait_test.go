package agent_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

// clock is one that a test sets forward.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Now()} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// hangs is a source of objects that never comes back with some, and fails with
// others at the first time.
type hangs struct {
	w  *world
	mu sync.Mutex
	// hang and fail are by digest.
	hang, fail map[string]bool
}

func (w *world) hangs() *hangs { return &hangs{w: w, hang: map[string]bool{}, fail: map[string]bool{}} }

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
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.w.fetch(ctx, digest)
}

// TestNobodyWaitsForWhatFailedBefore has an older application of another namespace
// fail, and hang at each attempt after that.
func TestNobodyWaitsForWhatFailedBefore(t *testing.T) {
	need.Kernel(t)
	for sentence, again := range map[string]func(w *world, p intent.Payload) intent.Payload{
		"the same version": func(_ *world, p intent.Payload) intent.Payload { return p },
		"a newer version": func(w *world, p intent.Payload) intent.Payload {
			w.serial++
			p.Serial, p.ObjectDigest = w.serial, w.object(programsObject("xdp_gpl"))
			return p
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			veth(t, "fr0", "fr1")
			old := tenant(w.xdp("xdp_count", "count_packets", "fr0"), "area", "old", 1, 1)
			young := tenant(w.xdp("xdp_pass", "xdp_pass", "fr0"), "home", "young", 2, 500)
			from, now := w.hangs(), newClock()
			from.fail[old.ObjectDigest] = true
			o := w.options()
			o.Clock, o.Fetch, o.FetchTimeout, o.BackOff = now.Now, from.fetch, time.Hour, agent.BackOff{First: time.Minute, Most: time.Minute}
			a := w.idle(o)
			if err := a.Accept(w.seal(old)); err != nil {
				t.Fatal(err)
			}
			until(t, "the older one to fail", time.Minute, func() bool { a.Reconcile(t.Context()); return errorOf(a, old) != "" })
			next := again(w, old)
			from.hold(old, next)
			now.forward(10 * time.Minute)
			a.Batch(func() {
				for _, p := range []intent.Payload{next, young} {
					if err := a.Accept(w.seal(p)); err != nil {
						t.Fatal(err)
					}
				}
			})
			until(t, "the younger one to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, young) })
			if s := statusOf(a, "old"); s.Conditions[0].Reason != "Fetching" {
				t.Errorf("the older one is not on its way: %+v", s.Conditions[0])
			}
		})
	}
}

// TestNobodyWaitsForEver has an older application of another namespace change again
// and again, each time to what never comes.
func TestNobodyWaitsForEver(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "fr0", "fr1")
	old := tenant(w.xdp("xdp_count", "count_packets", "fr0"), "area", "old", 1, 1)
	young := tenant(w.xdp("xdp_pass", "xdp_pass", "fr0"), "home", "young", 2, 500)
	from, now := w.hangs(), newClock()
	o := w.options()
	o.Clock, o.Fetch, o.FetchTimeout = now.Now, from.fetch, time.Hour
	a := w.idle(o)
	hand := func(all ...intent.Payload) {
		t.Helper()
		a.Batch(func() {
			for _, p := range all {
				if err := a.Accept(w.seal(p)); err != nil {
					t.Fatal(err)
				}
			}
		})
		a.Reconcile(t.Context())
	}
	from.hold(old)
	hand(old, young)
	until(t, "the younger one to wait", time.Minute, func() bool {
		a.Reconcile(t.Context())
		return statusOf(a, "young").Conditions[0].Reason == "Queued"
	})
	for i := range 6 {
		if at(a, young) != "" {
			t.Fatalf("it did not wait for version %d of the older one", i)
		}
		now.forward(20 * time.Minute)
		w.serial++
		old.Serial, old.ObjectDigest = w.serial, w.object(append(programsObject("xdp_count"), byte(i)))
		from.hold(old)
		hand(old)
	}
	until(t, "the younger one to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, young) })
	if s := statusOf(a, "old"); s.Conditions[0].Reason != "Fetching" {
		t.Errorf("the older one is not on its way: %+v", s.Conditions[0])
	}
}

// TestWhatRanGivesOnlyItselfAClaim has an application of another namespace run nearly
// all maps of an interface, and come back from a reboot as a version that never comes.
func TestWhatRanGivesOnlyItselfAClaim(t *testing.T) {
	need.Kernel(t)
	for sentence, failed := range map[string]bool{"it is on its way": false, "it failed": true} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			veth(t, "fr0", "fr1")
			large := tenant(w.maps62("fr0"), "area", "large", 2, 1)
			small := tenant(w.xdp("xdp_pass", "xdp_pass", "fr0"), "home", "small", 1, 500)
			from := w.hangs()
			o := w.options()
			o.Node, o.NamespaceShare, o.Fetch, o.FetchTimeout = "n", 100, from.fetch, time.Hour
			a, err := agent.New(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Accept(w.seal(large), w.seal(small)); err != nil {
				t.Fatal(err)
			}
			until(t, "both to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, large) && isIn(a, small) })
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(w.bpffs); err != nil {
				t.Fatal(err)
			}
			recreate(t, "fr0", "fr1")
			w.serial++
			large.Serial, large.ObjectDigest = w.serial, w.object(append(maps62Object, 0))
			from.hold(large)
			from.fail[large.ObjectDigest] = failed
			small = tenant(w.xdp("xdp_maps", "xdp_maps", "fr0"), "home", "small", 1, 500)
			a = w.idle(o)
			a.Batch(func() {
				for _, p := range []intent.Payload{large, small} {
					if err := a.Accept(w.seal(p)); err != nil {
						t.Fatal(err)
					}
				}
			})
			until(t, "the small one to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, small) })
		})
	}
}
