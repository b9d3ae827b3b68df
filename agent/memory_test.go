package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

// rows is how many rows of 4 KiB the large map has of an application that takes n MiB
// at most, and more than a tenth of one less.
func rows(mebibytes int) uint32 { return uint32(256*mebibytes - 16) }

// mapped is an application of an XDP program whose maps take so much.
func (w *world) mapped(namespace, name string, created int64, mebibytes int) intent.Payload {
	p := tenant(w.xdp("xdp_big_map", "xdp_big_map", "mm0"), namespace, name, created, 500)
	return sized(p, rows(mebibytes), 1)
}

// sized is an application with another number of rows and of entries per CPU.
func sized(p intent.Payload, rows, perCPU uint32) intent.Payload {
	p.Maps = map[string]v1alpha1.Map{"big": {MaxEntries: &rows}, "big_per_cpu": {MaxEntries: &perCPU}}
	return p
}

// revisions counts the revisions that were tried.
type revisions struct{ tried int }

// Loaded implements agent.Observer.
func (r *revisions) Loaded(what agent.Loadable, _ time.Duration, _ error) {
	if what == agent.LoadRevision {
		r.tried++
	}
}

// Attached implements agent.Observer.
func (*revisions) Attached(string, time.Duration, error) {}

// Healed implements agent.Observer.
func (*revisions) Healed(agent.Drift) {}

// withMemory is an agent with so much memory for maps, in MiB, that looks only when it
// is told to, and hardly ever tries again what failed.
func (w *world) withMemory(mebibytes int64, change func(*agent.Options)) (*agent.Agent, func()) {
	w.t.Helper()
	o := w.options()
	o.MapMemory, o.NamespaceShare, o.BackOff = mebibytes<<20, 100, agent.BackOff{First: time.Hour, Most: time.Hour}
	if change != nil {
		change(&o)
	}
	return w.ending(o)
}

// memoryWorld is a world with an interface.
func memoryWorld(t *testing.T) *world {
	t.Helper()
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "mm0", "mm1")
	return w
}

// TestMapsOfAllTakeNoMoreThanTheNodeHas has a newcomer ask for more memory than is left,
// and waits for room.
func TestMapsOfAllTakeNoMoreThanTheNodeHas(t *testing.T) {
	w := memoryWorld(t)
	var loads revisions
	a, _ := w.withMemory(4, func(o *agent.Options) { o.Observer = &loads })
	first := w.mapped("home", "first", 2, 3)
	large := w.mapped("area", "large", 1, 2)
	small := w.mapped("area", "small", 3, 1)
	w.hand(a, first, large, small)
	if !isIn(a, first) || !isIn(a, small) {
		t.Errorf("the first is told %q, the small one %q", errorOf(a, first), errorOf(a, small))
	}
	refusal := errorOf(a, large)
	for _, says := range []string{"load area/large: make maps and programs: memory: it takes 2 MiB, " +
		"and of the 4 MiB that this node has for maps and programs 4 MiB are held: ",
		"1 MiB by namespace area, 3 MiB by others; ", "use smaller maps (spec.maps.NAME.maxEntries) or smaller or fewer programs, " +
			"or have an administrator raise --map-memory"} {
		if !strings.Contains(refusal, says) {
			t.Errorf("the large one is told %q, want %q", refusal, says)
		}
	}
	if strings.Contains(refusal, "home") || strings.Contains(refusal, "first") {
		t.Errorf("the large one is told of another tenant: %q", refusal)
	}
	if s := statusOf(a, "large"); s.Conditions[0].Reason != "Failed" || s.Revision != "" {
		t.Errorf("the large one is %+v", s.Conditions[0])
	}
	if loads.tried != 2 {
		t.Errorf("%d revisions were loaded, want the 2 that fit", loads.tried)
	}
	w.hand(a, w.tombstone(first))
	if !isIn(a, large) || !isIn(a, small) {
		t.Errorf("with room the large one is told %q, the small one %q", errorOf(a, large), errorOf(a, small))
	}
}

// TestRoomThatIsFreedIsGivenAtOnce has an agent that hardly ever sweeps tell a newcomer
// that there is no room, and an update free some.
func TestRoomThatIsFreedIsGivenAtOnce(t *testing.T) {
	need.Kernel(t)
	quiet(t)
	w := memoryWorld(t)
	o := w.options()
	o.MapMemory, o.NamespaceShare = 4<<20, 100
	o.SweepInterval, o.BackOff = time.Hour, agent.BackOff{First: time.Hour, Most: time.Hour}
	a := w.startWith(o)
	first, second, third := w.mapped("home", "first", 1, 2), w.mapped("area", "second", 2, 3), w.mapped("area", "third", 3, 4)
	if err := w.accept(a, first); err != nil {
		t.Fatal(err)
	}
	// When the third comes, nothing else happens that would have the agent look again.
	for _, p := range []intent.Payload{second, third} {
		if err := w.accept(a, p); err == nil || !strings.Contains(err.Error(), p.Application.String()+": load "+p.Application.String()+": make maps and programs: ") {
			t.Fatalf("Settled = %v", err)
		}
	}
	w.serial++
	less := sized(first, rows(1), 1)
	less.Serial = w.serial
	w.give(a, less)
	until(t, "the second to be in", time.Minute, func() bool { return isIn(a, second) && isAt(a, less) })
}

// TestWhoRanKeepsItsMemory rejects a newcomer beside what runs, and has the agent start
// again.
func TestWhoRanKeepsItsMemory(t *testing.T) {
	for sentence, c := range map[string]struct {
		emptied bool
		memory  int64
	}{
		"the agent starts again":                 {false, 4},
		"it starts again with too little":        {false, 1},
		"the BPF file system is emptied":         {true, 4},
		"what ran takes all of what there is":    {true, 3},
		"it is set a limit, and had none before": {false, 0},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := memoryWorld(t)
			a, end := w.withMemory(c.memory, nil)
			if c.memory < 3 {
				end()
				a, end = w.withMemory(0, nil)
			}
			ran := w.mapped("home", "ran", 2, 3)
			newcomer := w.mapped("area", "newcomer", 1, 2)
			w.hand(a, ran)
			if c.memory >= 3 {
				w.hand(a, newcomer)
			}
			end()
			if c.emptied {
				if err := os.RemoveAll(w.bpffs); err != nil {
					t.Fatal(err)
				}
				recreate(t, "mm0", "mm1")
			}
			a, _ = w.withMemory(max(c.memory, 1), nil)
			if c.memory < 3 {
				w.hand(a, newcomer)
			}
			looks(t, a)
			if !isIn(a, ran) {
				t.Errorf("who ran is told %q", errorOf(a, ran))
			}
			if err := errorOf(a, newcomer); isIn(a, newcomer) || !strings.Contains(err, "memory: it takes 2 MiB") {
				t.Errorf("the newcomer is told %q", err)
			}
		})
	}
}

// TestWhatRunsWithoutAnIntentTakesMemory has a node lose an intent.
func TestWhatRunsWithoutAnIntentTakesMemory(t *testing.T) {
	w := memoryWorld(t)
	a, end := w.withMemory(4, nil)
	ran, newcomer := w.mapped("home", "ran", 2, 3), w.mapped("area", "newcomer", 1, 2)
	w.hand(a, ran)
	end()
	for _, folder := range []string{"intents", "deployed"} {
		if err := os.RemoveAll(filepath.Join(w.dir, "state", folder)); err != nil {
			t.Fatal(err)
		}
	}
	a, _ = w.withMemory(4, nil)
	w.hand(a, newcomer)
	if s := statusOf(a, "ran"); s == nil || s.Conditions[0].Reason != "IntentLost" {
		t.Errorf("what ran is %+v", s)
	}
	if err := errorOf(a, newcomer); !strings.Contains(err, "3 MiB by others") {
		t.Errorf("the newcomer is told %q", err)
	}
}

// TestMemoryIsKeptForWhoRanAndIsFetchedAgain tears an object, as a crash may.
func TestMemoryIsKeptForWhoRanAndIsFetchedAgain(t *testing.T) {
	w := memoryWorld(t)
	a, end := w.withMemory(4, nil)
	ran := w.mapped("home", "ran", 2, 3)
	// The other object is the same program with an ELF file of its own.
	newcomer := w.mapped("area", "newcomer", 1, 2)
	newcomer.ObjectDigest = w.object(append(programsObject("xdp_big_map"), 0))
	w.hand(a, ran, newcomer)
	end()
	if err := os.RemoveAll(w.bpffs); err != nil {
		t.Fatal(err)
	}
	recreate(t, "mm0", "mm1")
	restore := w.lose(ran)
	a, _ = w.withMemory(4, func(o *agent.Options) { o.BackOff = agent.BackOff{First: time.Nanosecond, Most: time.Nanosecond} })
	until(t, "the newcomer to be refused", time.Minute, func() bool { a.Reconcile(t.Context()); return errorOf(a, newcomer) != "" })
	if at(a, newcomer) != "" || !strings.Contains(errorOf(a, newcomer), "3 MiB by others") {
		t.Errorf("the newcomer runs at %q: %q", at(a, newcomer), errorOf(a, newcomer))
	}
	restore()
	until(t, "who ran to be back", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, ran) })
}

// TestAnOlderOneIsWaitedForWhereMemoryIsShort has the objects of a new node come in the
// wrong order.
func TestAnOlderOneIsWaitedForWhereMemoryIsShort(t *testing.T) {
	w := memoryWorld(t)
	// On another interface, so that nobody waits for it there.
	old := w.mapped("home", "old", 1, 3)
	old.Programs[0].Attach[0].Interfaces.Names = []string{"mm1"}
	young := w.mapped("area", "young", 2, 3)
	young.ObjectDigest = w.object(append(programsObject("xdp_big_map"), 0))
	small := w.mapped("area", "small", 3, 1)
	small.ObjectDigest = young.ObjectDigest
	come := make(chan struct{})
	a, _ := w.withMemory(4, func(o *agent.Options) {
		o.FetchTimeout = time.Hour
		o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
			if digest == old.ObjectDigest {
				select {
				case <-come:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return w.fetch(ctx, digest)
		}
	})
	w.give(a, small, old)
	until(t, "what takes little not to wait", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, small) })
	w.give(a, w.tombstone(small), young)
	until(t, "the younger one to wait", time.Minute, func() bool {
		a.Reconcile(t.Context())
		s := statusOf(a, "young")
		return s != nil && s.Conditions[0].Reason == "Queued"
	})
	if s := statusOf(a, "young"); s.Conditions[0].Message != "it waits: an application that has precedence on map memory of the node is on its way" {
		t.Errorf("the younger one is told %q", s.Conditions[0].Message)
	}
	close(come)
	until(t, "the older one to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, old) })
	looks(t, a)
	if isIn(a, young) || !strings.Contains(errorOf(a, young), "3 MiB by others") {
		t.Errorf("the younger one is told %q", errorOf(a, young))
	}
}

// TestANamespaceHasItsShareOfTheMemory has one namespace ask for more than half.
func TestANamespaceHasItsShareOfTheMemory(t *testing.T) {
	w := memoryWorld(t)
	a, _ := w.withMemory(4, func(o *agent.Options) { o.NamespaceShare = 50 })
	all := w.mapped("zone", "all", 1, 3)
	one, two := w.mapped("zone", "one", 2, 1), w.mapped("zone", "two", 3, 1)
	three, others := w.mapped("zone", "three", 4, 1), w.mapped("home", "others", 5, 2)
	w.hand(a, all)
	if want := "memory: it takes 3 MiB, namespace zone holds 0 MiB, and one namespace may have 2 MiB of the 4 MiB (50 %)"; isIn(a, all) ||
		!strings.Contains(errorOf(a, all), want) {
		t.Errorf("who asks for all is told %q, want %q", errorOf(a, all), want)
	}
	w.hand(a, one, two, three)
	if want := "it takes 1 MiB, namespace zone holds 2 MiB, and one namespace may have 2 MiB"; isIn(a, three) || !strings.Contains(errorOf(a, three), want) {
		t.Errorf("the third is told %q, want %q", errorOf(a, three), want)
	}
	w.hand(a, others)
	for _, p := range []intent.Payload{one, two, others} {
		if !isIn(a, p) {
			t.Errorf("%s is told %q", p.Application, errorOf(a, p))
		}
	}
}

// TestAnUpdateTakesMemoryBesideWhatItReplaces updates an application whose maps are made
// anew, or shared.
func TestAnUpdateTakesMemoryBesideWhatItReplaces(t *testing.T) {
	for sentence, c := range map[string]struct {
		rows, perCPU uint32
		fits         bool
	}{
		"a map of another size that fits beside": {rows(2) - 1, 1, true},
		"one that does not":                      {rows(3), 1, false},
		"a large map that is shared":             {rows(2), 2, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := memoryWorld(t)
			a, _ := w.withMemory(4, func(o *agent.Options) { o.NamespaceShare = 50 })
			app := w.mapped("home", "app", 1, 2)
			w.hand(a, app)
			before := statusOf(a, "app").Revision
			w.serial++
			next := sized(app, c.rows, c.perCPU)
			next.Serial = w.serial
			w.hand(a, next)
			if isAt(a, next) != c.fits {
				t.Errorf("the update is told %q", errorOf(a, next))
			}
			s := statusOf(a, "app")
			if !c.fits && (s.Revision != before || s.Conditions[0].Reason != "KeptPrevious" || !strings.Contains(s.Error, "memory: it takes 3 MiB")) {
				t.Errorf("without the update %s runs, want %s: %+v", s.Revision, before, s.Conditions[0])
			}
			// What was replaced takes nothing any more.
			if other := w.mapped("area", "other", 2, 2); c.fits {
				if w.hand(a, other); !isIn(a, other) {
					t.Errorf("another application is told %q", errorOf(a, other))
				}
			}
		})
	}
}

func TestALimitOfMemoryIsANumber(t *testing.T) {
	w := newWorld(t)
	for _, n := range []int64{-1, 1 << 46} {
		o := w.options()
		o.MapMemory = n
		if _, err := agent.New(o); err == nil || !strings.Contains(err.Error(), "the memory for maps is") {
			t.Errorf("%d: %v", n, err)
		}
	}
}
