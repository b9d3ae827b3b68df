package build

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// newLoads are loads without an observer.
func newLoads() *Loads {
	return NewLoads(time.Now, slog.New(slog.DiscardHandler), func(Loadable, time.Duration, error) {})
}

// held is a load of a key that waits until it may end, and whose closer counts.
type held struct {
	may    chan bool
	closed int
}

func (h *held) Close() error {
	h.closed++
	return nil
}

// asked is a load that a reconcile asks for under a key.
type asked struct {
	key string
	ask func() (Request, error)
}

// ask is a request for it.
func (h *held) ask(key string, urgency Urgency, tenant string) asked {
	return asked{key, func() (Request, error) {
		return Request{Line: "line of " + tenant, Tenants: []string{tenant}, Urgency: urgency,
			Start: func() (Run, error) {
				return func(Turn) (io.Closer, error) {
					<-h.may
					return h, nil
				}, nil
			}}, nil
	}}
}

// keys are those of the loads in progress.
func keys(l *Loads) (all []string) {
	for _, r := range l.Current() {
		all = append(all, r.Key())
	}
	slices.Sort(all)
	return all
}

// reconcile asks for loads, and starts what can start.
func reconcile(t *testing.T, l *Loads, asks ...asked) *Round {
	t.Helper()
	l.Collect()
	r := l.Begin()
	for _, one := range asks {
		if _, err := Get[*held](r, one.key, one.ask); err != nil && !errors.Is(err, ErrLoading) {
			t.Fatal(err)
		}
	}
	if err := l.Keep(r); err != nil {
		t.Fatal(err)
	}
	l.Enqueue(r.Queued)
	l.StartNext()
	return r
}

// TestALoadThatWasCollectedWakesNoLoop: the reconcile that takes it over may begin for something else.
func TestALoadThatWasCollectedWakesNoLoop(t *testing.T) {
	l, one := newLoads(), &held{may: make(chan bool)}
	asks := one.ask("a", ForNew, "team")
	reconcile(t, l, asks)
	close(one.may)
	for _, q := range l.queues {
		q.Wait()
	}
	if reconcile(t, l, asks); len(l.Ended()) > 0 {
		t.Error("a load that a reconcile took over asks for another one")
	}
	if err := l.Close(); err != nil || one.closed != 1 {
		t.Errorf("closed %d times, %v", one.closed, err)
	}
}

func TestLoadsOfOneUrgencyWaitForNoOthers(t *testing.T) {
	l := newLoads()
	slow, ends, waits := &held{may: make(chan bool)}, &held{may: make(chan bool)}, &held{may: make(chan bool)}
	reconcile(t, l, slow.ask("slow", ForNew, "a"))
	asks := []asked{slow.ask("slow", ForNew, "a"), ends.ask("ends", ForEnding, "b"), waits.ask("waits", ForNew, "b")}
	reconcile(t, l, asks...)
	if got := keys(l); !slices.Equal(got, []string{"ends", "slow"}) || !l.IsLoading() {
		t.Fatalf("%q are loaded, want one of each urgency", got)
	}
	ends.may <- true
	<-l.Ended()
	r := reconcile(t, l, asks...)
	if got, err := Get[*held](r, "ends", nil); got != ends || err != nil {
		t.Errorf("Get = %v, %v, want what was loaded", got, err)
	}
	// Nobody asks for any of it any more: what is in progress is loaded, and freed.
	reconcile(t, l)
	slow.may <- true
	<-l.Ended()
	reconcile(t, l)
	if slow.closed != 1 || ends.closed != 1 || len(l.Current())+len(l.waiting)+len(l.results)+len(l.types) != 0 {
		t.Errorf("closed %d and %d times; left are %q, %d that wait, %d results", slow.closed, ends.closed, keys(l), len(l.waiting), len(l.results))
	}
}

func TestANewVersionKeepsThePlaceOfItsLine(t *testing.T) {
	l := newLoads()
	first, second, third := &held{may: make(chan bool)}, &held{may: make(chan bool)}, &held{may: make(chan bool)}
	one := first.ask("first", ForNew, "a")
	reconcile(t, l, one)
	reconcile(t, l, one, second.ask("second@1", ForNew, "b"))
	// Another one comes, and then a new version of the second.
	reconcile(t, l, one, third.ask("third", ForNew, "c"), second.ask("second@1", ForNew, "b"))
	asks := []asked{one, third.ask("third", ForNew, "c"), second.ask("second@2", ForNew, "b")}
	reconcile(t, l, asks...)
	first.may <- true
	<-l.Ended()
	reconcile(t, l, asks...)
	if got := keys(l); !slices.Equal(got, []string{"second@2"}) {
		t.Fatalf("%q is loaded next, want the new version", got)
	}
	second.may <- true
	if err := l.Close(); err != nil || second.closed != 1 {
		t.Errorf("Close = %v, and freed the load in progress %d times", err, second.closed)
	}
}

func TestALoadThatCannotBeginIsAResult(t *testing.T) {
	l, broken := newLoads(), errors.New("no memory")
	r := l.Begin()
	ask := func() (Request, error) {
		return Request{Start: func() (Run, error) { return nil, broken }}, nil
	}
	if _, err := Get[*held](r, "key", ask); !errors.Is(err, ErrLoading) {
		t.Fatal(err)
	}
	l.Enqueue(r.Queued)
	if waiting, found := l.StartNext(); waiting != 0 || !found {
		t.Errorf("StartNext = %d, %v, want a result", waiting, found)
	}
	if _, err := Get[*held](r, "key", ask); !errors.Is(err, broken) {
		t.Errorf("Get = %v, want why it could not begin", err)
	}
	r.Take("key")
}

// TestLongLoadsOfOthersAreCounted has eight namespaces ask for loads without end, and one for its first.
// In front of it are the load under way and the first loads of those that had none yet, so that the bound
// of one load (bytecode.MaxLoadCost) bounds what it waits for.
func TestLongLoadsOfOthersAreCounted(t *testing.T) {
	const owners = 8
	for sentence, c := range map[string]struct{ ended, inFront int }{
		"others have loaded before":     {owners + 3, 1},
		"they come at the same time":    {0, owners},
		"half of them have loaded once": {owners / 2, owners / 2},
	} {
		t.Run(sentence, func(t *testing.T) {
			l := newLoads()
			next := map[int]int{}
			load := &held{may: make(chan bool)}
			ask := func() (all []asked) {
				for i := range owners {
					name := string(rune('a' + i))
					for k := range 3 {
						all = append(all, load.ask(name+string(rune('0'+next[i]+k)), ForNew, name))
					}
				}
				return all
			}
			// end ends the load under way, and returns whose is next.
			end := func(more ...asked) string {
				for i := range owners {
					if name := string(rune('a' + i)); len(keys(l)) == 1 && keys(l)[0][:1] == name {
						next[i]++
					}
				}
				load.may <- true
				<-l.Ended()
				reconcile(t, l, append(ask(), more...)...)
				return keys(l)[0]
			}
			reconcile(t, l, ask()...)
			for range c.ended {
				end()
			}
			newcomer := load.ask("newcomer", ForNew, "small")
			reconcile(t, l, append(ask(), newcomer)...)
			inFront := 1
			for end(newcomer) != "newcomer" {
				if inFront++; inFront > 2*owners {
					t.Fatal("it is never loaded")
				}
			}
			if inFront != c.inFront {
				t.Errorf("%d loads of others are in front, want %d", inFront, c.inFront)
			}
			go func() { load.may <- true }()
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestALongLoadBeginsAnewAmongLongOnes: no short one waits for it, and what takes more than a load has is an error that
// says how much that is.
func TestALongLoadBeginsAnewAmongLongOnes(t *testing.T) {
	l := newLoads()
	over := fmt.Errorf("load program: %w", unix.ETIME)
	var mu sync.Mutex
	var bounds, optional []time.Duration
	l.within = func(most time.Duration, f func()) (bool, error) {
		mu.Lock()
		bounds = append(bounds, most)
		mu.Unlock()
		f()
		return true, nil
	}
	long := func(key, tenant string, may chan bool) asked {
		return asked{key, func() (Request, error) {
			return Request{Line: key, Tenants: []string{tenant}, Start: func() (Run, error) {
				return func(turn Turn) (io.Closer, error) {
					optional = append(optional, turn.bound)
					<-may
					return nil, over
				}, nil
			}}, nil
		}}
	}
	may, short := make(chan bool), &held{may: make(chan bool)}
	asks := []asked{long("long", "team", may), short.ask("short", ForNew, "other")}
	reconcile(t, l, asks...)
	if got := keys(l); !slices.Equal(got, []string{"long"}) {
		t.Fatalf("%v is loaded first", got)
	}
	may <- true
	<-l.Ended()
	reconcile(t, l, asks...)
	if got := keys(l); !slices.Equal(got, []string{"long", "short"}) {
		t.Errorf("%v are loaded, want the long one beside the short one", got)
	}
	short.may <- true
	<-l.Ended()
	may <- true
	<-l.Ended()
	l.Collect()
	r := l.Begin()
	_, err := Get[*held](r, "long", asks[0].ask)
	if !errors.Is(err, over) || !strings.Contains(err.Error(), "denied by load/time: the kernel's verifier did not end within 5s of processor time") {
		t.Errorf("the long one: %v", err)
	}
	slices.Sort(bounds)
	if !slices.Equal(bounds, []time.Duration{shortLoad, shortLoad, mostOfNamespace}) {
		t.Errorf("the bounds of the loads are %v", bounds)
	}
	if !slices.Equal(optional, []time.Duration{0, mostOfNamespace}) {
		t.Errorf("optional programs are left out after %v", optional)
	}
	if err := l.Keep(l.Begin()); err != nil || len(l.long) > 0 {
		t.Errorf("Keep = %v, and %v are remembered", err, l.long)
	}
}

func TestLoadsOfTheClusterAndChainsHaveMoreTime(t *testing.T) {
	for want, r := range map[time.Duration][]Request{
		mostOfNamespace: {{Tenants: []string{"", "team"}, What: RevisionLoad}},
		mostOfOthers:    {{Tenants: []string{""}, What: RevisionLoad}, {Tenants: []string{"", "team"}, What: ChainLoad}},
	} {
		for _, r := range r {
			if got := r.most(); got != want {
				t.Errorf("%+v has %s, want %s", r, got, want)
			}
		}
	}
}

// TestWhatTheKernelReplacesForLongIsLong: a short load is turned away before the kernel has it, and admitted among long ones.
func TestWhatTheKernelReplacesForLongIsLong(t *testing.T) {
	for cost, want := range map[[2]uint64]bool{{shortCost, shortMaking}: false, {shortCost + 1, 0}: true, {0, shortMaking + 1}: true} {
		l, loaded := newLoads(), &held{}
		one := asked{"one", func() (Request, error) {
			return Request{Line: "one", Tenants: []string{"team"}, Start: func() (Run, error) {
				return func(turn Turn) (io.Closer, error) {
					return loaded, errors.Join(turn.admit(cost[0]), turn.admitMaps(cost[1]))
				}, nil
			}}, nil
		}}
		reconcile(t, l, one)
		<-l.Ended()
		l.Collect()
		if l.long["one"] != want {
			t.Fatalf("a cost of %d is long: %v", cost, !want)
		}
		if want {
			reconcile(t, l, one)
			<-l.Ended()
			l.Collect()
		}
		got, err := Get[*held](l.Begin(), "one", one.ask)
		if err != nil || got != loaded {
			t.Errorf("a cost of %d: %v, %v", cost, got, err)
		}
		if err := l.Close(); err != nil || loaded.closed != 1 {
			t.Errorf("Close = %v, and it was closed %d times", err, loaded.closed)
		}
	}
}

// TestLoadsAreListed: what waits keeps its time while other reconciles ask for it again, and what ended is not listed.
func TestLoadsAreListed(t *testing.T) {
	var now atomic.Int64
	l := NewLoads(func() time.Time { return time.Unix(now.Load(), 0) }, slog.New(slog.DiscardHandler), func(Loadable, time.Duration, error) {})
	first, second, measured := &held{may: make(chan bool)}, &held{may: make(chan bool)}, &held{may: make(chan bool)}
	named := func(one asked, app string) asked {
		return asked{one.key, func() (Request, error) {
			r, err := one.ask()
			r.For = []v1alpha1.Identity{{Name: app}}
			return r, err
		}}
	}
	asks := []asked{named(first.ask("1", ForNew, "a"), "first"), named(second.ask("2", ForNew, "b"), "second"), measured.ask("3", ForReplacing, "c")}
	for range 3 {
		reconcile(t, l, asks...)
		now.Add(1)
	}
	is := func(want string) {
		t.Helper()
		var all []string
		for _, one := range l.List() {
			all = append(all, fmt.Sprint(one.For[0].Name, " ", one.Since.Unix(), " ", one.IsWaiting))
		}
		if got := strings.Join(all, ", "); got != want {
			t.Errorf("the loads are %s, want %s", got, want)
		}
	}
	is("first 0 false, second 0 true")
	first.may <- true
	<-l.Ended()
	is("second 0 true")
	reconcile(t, l, asks...)
	is("second 3 false")
	second.may <- true
	<-l.Ended()
	is("")
	measured.may <- true
	<-l.Ended()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
