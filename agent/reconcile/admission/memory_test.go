package admission_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestMapsOfAllTakeNoMoreThanTheNodeHas has a newcomer ask for more memory than is left,
// and waits for room.
func TestMapsOfAllTakeNoMoreThanTheNodeHas(t *testing.T) {
	w := world.MemoryWorld(t)
	var loads world.Revisions
	a, _ := world.WithMemory(w, 4, func(o *agent.Options) { o.Observer = &loads })
	first := world.Mapped(w, "home", "first", 2, 3)
	large := world.Mapped(w, "area", "large", 1, 2)
	small := world.Mapped(w, "area", "small", 3, 1)
	world.Hand(w, a, first, large, small)
	if !world.IsIn(a, first) || !world.IsIn(a, small) {
		t.Errorf("the first is told %q, the small one %q", world.ErrorOf(a, first), world.ErrorOf(a, small))
	}
	refusal := world.ErrorOf(a, large)
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
	if s := world.StatusOf(a, "large"); s.Conditions[0].Reason != "Failed" || s.Revision != "" {
		t.Errorf("the large one is %+v", s.Conditions[0])
	}
	if loads.Tried != 2 {
		t.Errorf("%d revisions were loaded, want the 2 that fit", loads.Tried)
	}
	world.Hand(w, a, w.Tombstone(first))
	if !world.IsIn(a, large) || !world.IsIn(a, small) {
		t.Errorf("with room the large one is told %q, the small one %q", world.ErrorOf(a, large), world.ErrorOf(a, small))
	}
}

// TestRoomThatIsFreedIsGivenAtOnce has an agent that hardly ever sweeps tell a newcomer
// that there is no room, and an update free some.
func TestRoomThatIsFreedIsGivenAtOnce(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	w := world.MemoryWorld(t)
	o := w.Options()
	o.MapMemory, o.NamespaceShare = 4<<20, 100
	o.SweepInterval, o.BackOff = time.Hour, agent.BackOff{First: time.Hour, Most: time.Hour}
	a := w.StartWith(o)
	first, second, third := world.Mapped(w, "home", "first", 1, 2), world.Mapped(w, "area", "second", 2, 3), world.Mapped(w, "area", "third", 3, 4)
	if err := w.Accept(a, first); err != nil {
		t.Fatal(err)
	}
	// When the third comes, nothing else happens that would have the agent look again.
	for _, p := range []intent.Payload{second, third} {
		if err := w.Accept(a, p); err == nil || !strings.Contains(err.Error(), p.Application.String()+": load "+p.Application.String()+": make maps and programs: ") {
			t.Fatalf("Settled = %v", err)
		}
	}
	w.Serial++
	less := world.Sized(first, world.Rows(1), 1)
	less.Serial = w.Serial
	w.Give(a, less)
	world.Until(t, "the second to be in", time.Minute, func() bool { return world.IsIn(a, second) && world.IsAt(a, less) })
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
			w := world.MemoryWorld(t)
			a, end := world.WithMemory(w, c.memory, nil)
			if c.memory < 3 {
				end()
				a, end = world.WithMemory(w, 0, nil)
			}
			ran := world.Mapped(w, "home", "ran", 2, 3)
			newcomer := world.Mapped(w, "area", "newcomer", 1, 2)
			world.Hand(w, a, ran)
			if c.memory >= 3 {
				world.Hand(w, a, newcomer)
			}
			end()
			if c.emptied {
				if err := os.RemoveAll(w.BPFFS); err != nil {
					t.Fatal(err)
				}
				recreate(t, "mm0", "mm1")
			}
			a, _ = world.WithMemory(w, max(c.memory, 1), nil)
			if c.memory < 3 {
				world.Hand(w, a, newcomer)
			}
			world.Looks(t, a)
			if !world.IsIn(a, ran) {
				t.Errorf("who ran is told %q", world.ErrorOf(a, ran))
			}
			if err := world.ErrorOf(a, newcomer); world.IsIn(a, newcomer) || !strings.Contains(err, "memory: it takes 2 MiB") {
				t.Errorf("the newcomer is told %q", err)
			}
		})
	}
}

// TestWhatRunsWithoutAnIntentTakesMemory has a node lose an intent.
func TestWhatRunsWithoutAnIntentTakesMemory(t *testing.T) {
	w := world.MemoryWorld(t)
	a, end := world.WithMemory(w, 4, nil)
	ran, newcomer := world.Mapped(w, "home", "ran", 2, 3), world.Mapped(w, "area", "newcomer", 1, 2)
	world.Hand(w, a, ran)
	end()
	for _, folder := range []string{"intents", "deployed"} {
		if err := os.RemoveAll(filepath.Join(w.Dir, "state", folder)); err != nil {
			t.Fatal(err)
		}
	}
	a, _ = world.WithMemory(w, 4, nil)
	world.Hand(w, a, newcomer)
	if s := world.StatusOf(a, "ran"); s == nil || s.Conditions[0].Reason != "IntentLost" {
		t.Errorf("what ran is %+v", s)
	}
	if err := world.ErrorOf(a, newcomer); !strings.Contains(err, "3 MiB by others") {
		t.Errorf("the newcomer is told %q", err)
	}
}

// TestMemoryIsKeptForWhoRanAndIsFetchedAgain tears an object, as a crash may.
func TestMemoryIsKeptForWhoRanAndIsFetchedAgain(t *testing.T) {
	w := world.MemoryWorld(t)
	a, end := world.WithMemory(w, 4, nil)
	ran := world.Mapped(w, "home", "ran", 2, 3)
	// The other object is the same program with an ELF file of its own.
	newcomer := world.Mapped(w, "area", "newcomer", 1, 2)
	newcomer.ObjectDigest = w.Object(append(world.ProgramsObject("xdp_big_map"), 0))
	world.Hand(w, a, ran, newcomer)
	end()
	if err := os.RemoveAll(w.BPFFS); err != nil {
		t.Fatal(err)
	}
	recreate(t, "mm0", "mm1")
	restore := world.Lose(w, ran)
	a, _ = world.WithMemory(w, 4, func(o *agent.Options) { o.BackOff = agent.BackOff{First: time.Nanosecond, Most: time.Nanosecond} })
	world.Until(t, "the newcomer to be refused", time.Minute, func() bool { a.Reconcile(t.Context()); return world.ErrorOf(a, newcomer) != "" })
	if world.At(a, newcomer) != "" || !strings.Contains(world.ErrorOf(a, newcomer), "3 MiB by others") {
		t.Errorf("the newcomer runs at %q: %q", world.At(a, newcomer), world.ErrorOf(a, newcomer))
	}
	restore()
	world.Until(t, "who ran to be back", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, ran) })
}

// TestAnOlderOneIsWaitedForWhereMemoryIsShort has the objects of a new node come in the
// wrong order.
func TestAnOlderOneIsWaitedForWhereMemoryIsShort(t *testing.T) {
	w := world.MemoryWorld(t)
	// On another interface, so that nobody waits for it there.
	old := world.Mapped(w, "home", "old", 1, 3)
	old.Programs[0].Attach[0].Interfaces.Names = []string{"mm1"}
	young := world.Mapped(w, "area", "young", 2, 3)
	young.ObjectDigest = w.Object(append(world.ProgramsObject("xdp_big_map"), 0))
	small := world.Mapped(w, "area", "small", 3, 1)
	small.ObjectDigest = young.ObjectDigest
	come := make(chan struct{})
	a, _ := world.WithMemory(w, 4, func(o *agent.Options) {
		o.FetchTimeout = time.Hour
		o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
			if digest == old.ObjectDigest {
				select {
				case <-come:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return w.Fetch(ctx, digest)
		}
	})
	w.Give(a, small, old)
	world.Until(t, "what takes little not to wait", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, small) })
	w.Give(a, w.Tombstone(small), young)
	world.Until(t, "the younger one to wait", time.Minute, func() bool {
		a.Reconcile(t.Context())
		s := world.StatusOf(a, "young")
		return s != nil && s.Conditions[0].Reason == "Queued"
	})
	if s := world.StatusOf(a, "young"); s.Conditions[0].Message != "it waits: an application that has precedence on map memory of the node is on its way" {
		t.Errorf("the younger one is told %q", s.Conditions[0].Message)
	}
	close(come)
	world.Until(t, "the older one to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, old) })
	world.Looks(t, a)
	if world.IsIn(a, young) || !strings.Contains(world.ErrorOf(a, young), "3 MiB by others") {
		t.Errorf("the younger one is told %q", world.ErrorOf(a, young))
	}
}

// TestANamespaceHasItsShareOfTheMemory has one namespace ask for more than half.
func TestANamespaceHasItsShareOfTheMemory(t *testing.T) {
	w := world.MemoryWorld(t)
	a, _ := world.WithMemory(w, 4, func(o *agent.Options) { o.NamespaceShare = 50 })
	all := world.Mapped(w, "zone", "all", 1, 3)
	one, two := world.Mapped(w, "zone", "one", 2, 1), world.Mapped(w, "zone", "two", 3, 1)
	three, others := world.Mapped(w, "zone", "three", 4, 1), world.Mapped(w, "home", "others", 5, 2)
	world.Hand(w, a, all)
	if want := "memory: it takes 3 MiB, namespace zone holds 0 MiB, and one namespace may have 2 MiB of the 4 MiB (50 %)"; world.IsIn(a, all) ||
		!strings.Contains(world.ErrorOf(a, all), want) {
		t.Errorf("who asks for all is told %q, want %q", world.ErrorOf(a, all), want)
	}
	world.Hand(w, a, one, two, three)
	if want := "it takes 1 MiB, namespace zone holds 2 MiB, and one namespace may have 2 MiB"; world.IsIn(a, three) || !strings.Contains(world.ErrorOf(a,
		three), want) {
		t.Errorf("the third is told %q, want %q", world.ErrorOf(a, three), want)
	}
	world.Hand(w, a, others)
	for _, p := range []intent.Payload{one, two, others} {
		if !world.IsIn(a, p) {
			t.Errorf("%s is told %q", p.Application, world.ErrorOf(a, p))
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
		"a map of another size that fits beside": {world.Rows(2) - 1, 1, true},
		"one that does not":                      {world.Rows(3), 1, false},
		"a large map that is shared":             {world.Rows(2), 2, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.MemoryWorld(t)
			a, _ := world.WithMemory(w, 4, func(o *agent.Options) { o.NamespaceShare = 50 })
			app := world.Mapped(w, "home", "app", 1, 2)
			world.Hand(w, a, app)
			before := world.StatusOf(a, "app").Revision
			w.Serial++
			next := world.Sized(app, c.rows, c.perCPU)
			next.Serial = w.Serial
			world.Hand(w, a, next)
			if world.IsAt(a, next) != c.fits {
				t.Errorf("the update is told %q", world.ErrorOf(a, next))
			}
			s := world.StatusOf(a, "app")
			if !c.fits && (s.Revision != before || s.Conditions[0].Reason != "KeptPrevious" || !strings.Contains(s.Error, "memory: it takes 3 MiB")) {
				t.Errorf("without the update %s runs, want %s: %+v", s.Revision, before, s.Conditions[0])
			}
			// What was replaced takes nothing any more.
			if other := world.Mapped(w, "area", "other", 2, 2); c.fits {
				if world.Hand(w, a, other); !world.IsIn(a, other) {
					t.Errorf("another application is told %q", world.ErrorOf(a, other))
				}
			}
		})
	}
}

func TestALimitOfMemoryIsANumber(t *testing.T) {
	w := world.New(t)
	for _, n := range []int64{-1, 1 << 46} {
		o := w.Options()
		o.MapMemory = n
		if _, err := agent.New(o); err == nil || !strings.Contains(err.Error(), "the memory for maps is") {
			t.Errorf("%d: %v", n, err)
		}
	}
}
