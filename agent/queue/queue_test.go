package queue

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// slow is how long a job of a bench takes until it counts as slow.
const slow = 2 * time.Second

// bench is a queue whose jobs end when the test says so.
type bench struct {
	*Queue
	began []string
	may   map[string]chan bool
	// over is closed when every job may end.
	over chan struct{}
	// woken is how often the loop was.
	woken int
}

// run runs a test with a queue, and ends what is left.
func run(t *testing.T, o Options, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{may: map[string]chan bool{}, over: make(chan struct{})}
		o.Slow, o.Log, o.Wake = slow, slog.New(slog.DiscardHandler), func() { b.woken++ }
		b.Queue = New(o)
		test(t, b)
		close(b.over)
		b.Wait()
		for len(b.lines) > 0 {
			b.Next()
			b.Wait()
		}
		b.Next()
		if len(b.lines)+len(b.running)+len(b.served)+b.total+b.fast != 0 {
			t.Errorf("an idle queue remembers %v %v %v %d %d", b.lines, b.running, b.served, b.total, b.fast)
		}
	})
}

// give hands over a job of the owner before the first dot of its name. One with an exclamation mark is urgent.
func (b *bench) give(name string) *Ticket {
	owner := name
	for i, r := range name {
		if r == '.' {
			owner = name[:i]
			break
		}
	}
	return b.add(Job{What: name, Owners: []string{owner}, Urgent: name[len(name)-1] == '!'})
}

func (b *bench) add(j Job) *Ticket {
	j.Run = b.job(j.What)
	t := b.Add(j)
	synctest.Wait()
	return t
}

// job notes that it began, and ends when the test says so.
func (b *bench) job(name string) func(context.Context) bool {
	may := make(chan bool)
	return func(context.Context) bool {
		b.mu.Lock()
		b.may[name] = may
		b.began = append(b.began, name)
		b.mu.Unlock()
		select {
		case <-may:
		case <-b.over:
		}
		return true
	}
}

// ends has a job end that began.
func (b *bench) ends(name string) {
	b.end(name)
	synctest.Wait()
}

func (b *bench) end(name string) {
	b.mu.Lock()
	may := b.may[name]
	b.mu.Unlock()
	may <- true
}

// order returns the jobs that began, in their order.
func (b *bench) order() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.began)
}

// passes lets time of the bubble pass.
func passes(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestOwnersTakeTurns(t *testing.T) {
	run(t, Options{Concurrent: 1}, func(t *testing.T, b *bench) {
		for _, name := range []string{"a.1", "a.2", "a.3", "b.1", "a.4!", "c.1", "a.5!", "a.6", "d.1!", "d.2"} {
			b.give(name)
		}
		want := []string{"a.1", "b.1", "c.1", "d.1!", "a.4!", "d.2", "a.5!", "a.2", "a.3", "a.6"}
		for i, name := range want {
			if !slices.Equal(b.order(), want[:i+1]) {
				t.Fatalf("began %q, want %q: one at a time, the urgent ones first of their owner", b.order(), want[:i+1])
			}
			b.ends(name)
		}
	})
}

// TestTheOwnerServedLongestAgoIsNext has jobs begin on call, as loads do.
func TestTheOwnerServedLongestAgoIsNext(t *testing.T) {
	for sentence, c := range map[string]struct {
		// arrive lists, for each pick, the jobs that begin to wait before it.
		arrive [][]string
		want   []string
	}{
		"one owner after the other": {
			[][]string{{"a.1", "a.2", "a.3", "b.1", "c.1"}, {}, {}, {}, {}}, []string{"a.1", "b.1", "c.1", "a.2", "a.3"},
		},
		"the one that waits longest within an owner": {
			[][]string{{"a.3"}, {"a.2"}, {"a.1"}}, []string{"a.3", "a.2", "a.1"},
		},
		"one that comes late is next": {
			[][]string{{"a.1", "a.2", "a.3", "a.4"}, {}, {"b.1"}, {}}, []string{"a.1", "a.2", "b.1", "a.3"},
		},
		"two that come again and again leave the third its turn": {
			[][]string{{"a.1", "c.1", "c.2", "c.3"}, {}, {"b.1"}, {"a.2"}, {"b.2"}, {"a.3"}}, []string{"a.1", "c.1", "b.1", "a.2", "c.2", "b.2"},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			run(t, Options{Concurrent: 1, OnCall: true}, func(t *testing.T, b *bench) {
				for _, arrive := range c.arrive {
					for _, name := range arrive {
						b.give(name)
					}
					b.Next()
					synctest.Wait()
					b.ends(b.order()[len(b.order())-1])
				}
				if !slices.Equal(b.order(), c.want) {
					t.Errorf("began %q, want %q", b.order(), c.want)
				}
			})
		})
	}
}

func TestAJobThatReplacesAnotherKeepsItsPlace(t *testing.T) {
	run(t, Options{Concurrent: 1, OnCall: true}, func(t *testing.T, b *bench) {
		first, _ := b.give("a.first"), b.give("a.second")
		if !first.Cancel() {
			t.Fatal("it was not taken back")
		}
		b.add(Job{What: "a.again", Owners: []string{"a"}, Place: first.Place()})
		b.Next()
		synctest.Wait()
		if !slices.Equal(b.order(), []string{"a.again"}) {
			t.Errorf("began %q, want what has the first place", b.order())
		}
	})
}

func TestAJobOfSeveralOwnersBeginsAtTheTurnOfAnyOfThem(t *testing.T) {
	run(t, Options{Concurrent: 1}, func(t *testing.T, b *bench) {
		b.give("a.1")
		b.give("a.2")
		both := b.add(Job{What: "both", Owners: []string{"a"}})
		b.give("b.1")
		both.Join("b")
		b.ends("a.1")
		if !slices.Equal(b.order(), []string{"a.1", "both"}) || len(b.lines["a"]) != 1 {
			t.Errorf("began %q, and %d of a wait; want the job at the turn of b, and out of both lines", b.order(), len(b.lines["a"]))
		}
	})
}

func TestAJobIsDoneOnlyAfterItEnded(t *testing.T) {
	run(t, Options{Concurrent: 1}, func(t *testing.T, b *bench) {
		first, second := b.give("a.1"), b.give("a.2")
		if first.IsDone() || second.IsDone() || b.Of("a") != 2 || b.Running() != 1 || !first.HasBegun() || second.HasBegun() {
			t.Fatalf("done: %v, %v; %d are left, %d under way", first.IsDone(), second.IsDone(), b.Of("a"), b.Running())
		}
		b.ends("a.1")
		if !first.IsDone() || second.IsDone() {
			t.Errorf("done: %v, %v, want the first alone", first.IsDone(), second.IsDone())
		}
		if b.woken != 0 {
			t.Error("the loop is woken before the owner's jobs ended")
		}
		if b.ends("a.2"); b.woken != 1 {
			t.Error("the loop is not woken when the owner's jobs ended")
		}
		b.give("b.1!")
		b.give("b.2!")
		if b.ends("b.1!"); b.woken != 2 {
			t.Error("the loop is not woken when an urgent job ended")
		}
		if none := (*Ticket)(nil); !none.IsDone() {
			t.Error("no job is not done")
		}
		b.Add(Job{Owners: []string{"c"}, Urgent: true, Run: func(context.Context) bool { return false }})
		b.ends("b.2!")
		if b.woken != 3 {
			t.Error("the loop is woken by what is no news")
		}
	})
}

// TestWhoWaitsIsNotWokenBesides has the loop wait for a job itself.
func TestWhoWaitsIsNotWokenBesides(t *testing.T) {
	run(t, Options{}, func(t *testing.T, b *bench) {
		one := b.add(Job{What: "a.1", Owners: []string{"a"}, Urgent: true, Awaited: true})
		go b.end("a.1")
		if !one.Await(time.Second) || b.woken != 0 {
			t.Errorf("it was woken %d times, want the end of the job alone", b.woken)
		}
		began := time.Now()
		if one = b.add(Job{What: "a.2", Owners: []string{"a"}, Urgent: true, Awaited: true}); one.Await(time.Second) || time.Since(began) != time.Second {
			t.Errorf("it waited for %s, want the time that it had", time.Since(began))
		}
		if b.ends("a.2"); b.woken != 1 {
			t.Errorf("it was woken %d times by a job that it does not wait for any more, want once", b.woken)
		}
	})
}

func TestAJobIsCancelledUntilItBegins(t *testing.T) {
	run(t, Options{}, func(t *testing.T, b *bench) {
		first, second := b.give("a.1"), b.give("a.2")
		if first.Cancel() || !second.Cancel() || second.Cancel() {
			t.Error("want the second alone to be cancelled, once")
		}
		b.ends("a.1")
		if !slices.Equal(b.order(), []string{"a.1"}) {
			t.Errorf("began %q, want the first alone", b.order())
		}
	})
}

func TestAJobThatCannotBeginHasEnded(t *testing.T) {
	run(t, Options{Concurrent: 1, OnCall: true}, func(t *testing.T, b *bench) {
		fails := b.add(Job{What: "a.1", Owners: []string{"a"}, Prepare: func() bool { return false }})
		b.give("a.2")
		b.Next()
		synctest.Wait()
		if !fails.IsDone() || !slices.Equal(b.order(), []string{"a.2"}) {
			t.Errorf("done: %v; began %q, want the next one alone", fails.IsDone(), b.order())
		}
	})
}

// TestAPlaceIsAskedForAndTakenInOneStep fills the room that there is for jobs that have not ended.
func TestAPlaceIsAskedForAndTakenInOneStep(t *testing.T) {
	run(t, Options{Concurrent: 1, MaxOfOwner: 16, Max: 64}, func(t *testing.T, b *bench) {
		var got []int
		for _, owner := range []string{"a", "b", "c", "d", "e", "f"} {
			n := 0
			for n < 100 && b.give(fmt.Sprintf("%s.%d", owner, n)) != nil {
				n++
			}
			got = append(got, n)
		}
		if want := []int{16, 16, 16, 16, 1, 1}; !slices.Equal(got, want) {
			t.Errorf("owners had %v jobs taken, want %v", got, want)
		}
		place := b.Add(Job{Owners: []string{"g"}})
		if place == nil || b.Add(Job{Owners: []string{"g"}}) != nil {
			t.Fatal("want one place to be kept, and no second one")
		}
		if !place.Cancel() || b.HasRoom("a", false) || !b.HasRoom("g", false) {
			t.Error("a place that is given back is taken still")
		}
		// An owner that has all of its share may still have one that is owed and alone of its kind.
		if !b.HasRoom("a", true) {
			t.Fatal("there is no room for an urgent one")
		}
		b.add(Job{What: "a.owed", Owners: []string{"a"}, Urgent: true, Owed: true})
		if b.HasRoom("a", true) || !b.HasRoom("b", true) {
			t.Error("there is room for a second one")
		}
	})
}

func TestAKeptPlaceBeginsWhenItHasItsJob(t *testing.T) {
	run(t, Options{}, func(t *testing.T, b *bench) {
		place := b.Add(Job{Owners: []string{"a"}})
		if synctest.Wait(); place.HasBegun() {
			t.Fatal("it has begun without a job")
		}
		place.Go(b.job("a.1"))
		if synctest.Wait(); !place.HasBegun() {
			t.Error("it has not begun with its job")
		}
	})
}

// TestAJobThatHangsDelaysItsOwnerAlone has one job at a time, some of which hang.
func TestAJobThatHangsDelaysItsOwnerAlone(t *testing.T) {
	run(t, Options{Concurrent: 1}, func(t *testing.T, b *bench) {
		for _, name := range []string{"a.1", "b.1"} {
			b.give(name)
		}
		if passes(slow - time.Millisecond); !slices.Equal(b.order(), []string{"a.1"}) {
			t.Fatalf("began %q, want the first alone", b.order())
		}
		if passes(time.Millisecond); !slices.Equal(b.order(), []string{"a.1", "b.1"}) {
			t.Fatalf("began %q, want the job of the other owner next to the one that hangs", b.order())
		}
		second := b.give("a.2")
		if passes(time.Hour); second.HasBegun() {
			t.Error("an owner has a second job under way next to the one that hangs")
		}
	})
}

func TestASlowJobThatCountsDelaysAll(t *testing.T) {
	run(t, Options{Concurrent: 1, SlowCounts: true}, func(t *testing.T, b *bench) {
		b.give("a.1")
		other := b.give("b.1")
		if passes(time.Hour); other.HasBegun() {
			t.Error("it began next to one that is slow")
		}
	})
}

// TestOwnersThatHangLeaveRoomToOthers has owners take all that they get, none of which ends.
func TestOwnersThatHangLeaveRoomToOthers(t *testing.T) {
	for hung, want := range map[int]struct {
		// each is how many jobs a hung owner asks for, and the others how many are under way then: of hung owners
		// together, of a newcomer, and of an application of the cluster.
		each, running, newcomer, ofCluster int
	}{
		31: {5, 31 * 4, 4, 4},
		// All shared places are taken, by jobs that are no owner's first.
		43:   {5, 43 + 128, 1, 4},
		64:   {5, 64 + 128, 1, 4},
		1000: {2, 1000 + 128, 1, 4},
		1024: {2, 1024 + 128, 0, 4},
	} {
		t.Run(fmt.Sprint(hung), func(t *testing.T) {
			run(t, Options{PerOwner: 4}, func(t *testing.T, b *bench) {
				hang := func(owner string, n int) {
					for i := range n {
						b.Add(Job{Owners: []string{owner}, Run: b.job(fmt.Sprint(owner, ".", i))})
					}
				}
				for i := range hung {
					hang(fmt.Sprint("hung-", i), want.each)
				}
				if b.Running() != want.running {
					t.Errorf("%d jobs are under way, want %d", b.Running(), want.running)
				}
				hang("newcomer", 4)
				hang("/application", 4)
				if n, c := len(b.running["newcomer"]), len(b.running["/application"]); n != want.newcomer || c != want.ofCluster {
					t.Errorf("%d of a newcomer and %d of an application of the cluster are under way, want %d and %d", n, c, want.newcomer, want.ofCluster)
				}
			})
		})
	}
}

func TestAPartOfAnOwnerHasABoundOfItsOwn(t *testing.T) {
	run(t, Options{PerOwner: 3, PerPart: 2}, func(t *testing.T, b *bench) {
		for i, part := range []string{"x", "x", "x", "y", "y"} {
			b.add(Job{What: fmt.Sprint(part, i), Owners: []string{"a"}, Part: part})
		}
		if want := []string{"x0", "x1", "y3"}; !slices.Equal(b.order(), want) {
			t.Errorf("began %q, want %q", b.order(), want)
		}
	})
}

func TestWhoSettlesWaitsForWhatIsNotSlow(t *testing.T) {
	run(t, Options{}, func(t *testing.T, b *bench) {
		b.give("a.1")
		began := time.Now()
		if b.Settle(t.Context()); time.Since(began) != slow {
			t.Errorf("settled after %s, want %s", time.Since(began), slow)
		}
		b.give("b.1")
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began = time.Now()
		if b.Settle(ctx); time.Since(began) != time.Second {
			t.Errorf("waited for %s, want for the end of the context", time.Since(began))
		}
		go b.end("b.1")
		began = time.Now()
		if b.Settle(t.Context()); time.Since(began) != 0 {
			t.Errorf("settled after %s, want at the end of the job", time.Since(began))
		}
	})
}

// TestCloseWaitsForNoJob closes a queue in which one job hangs and one waits.
func TestCloseWaitsForNoJob(t *testing.T) {
	run(t, Options{Concurrent: 1}, func(t *testing.T, b *bench) {
		b.give("a.1")
		b.give("a.2")
		ended := make(chan error)
		b.Add(Job{Owners: []string{"/c"}, Run: func(ctx context.Context) bool {
			<-ctx.Done()
			ended <- ctx.Err()
			return true
		}})
		passes(slow)
		b.Close()
		if err := <-ended; err == nil {
			t.Error("the context of a job did not end")
		}
		if b.Add(Job{Owners: []string{"d"}, Owed: true}) != nil {
			t.Error("a closed queue takes a job")
		}
		if synctest.Wait(); len(b.lines) > 0 || b.Running() != 1 {
			t.Errorf("%d lines wait, and %d jobs are under way, want the one alone that hangs", len(b.lines), b.Running())
		}
	})
}
