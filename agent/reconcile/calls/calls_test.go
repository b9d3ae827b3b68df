package calls

import (
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// kernel answers calls when it is told to.
type kernel struct {
	*Queue
	now   time.Time
	began []string
	may   map[string]chan bool
	// woken is how often the loop was.
	woken int
}

func newKernel() *kernel {
	k := &kernel{may: map[string]chan bool{}}
	k.Queue = NewQueue(Options{Clock: func() time.Time { return k.now }, Log: slog.New(slog.DiscardHandler), Wake: func() { k.woken++ }})
	return k
}

// hand hands over a call of the owner that is the first letter of its name. One with an
// exclamation mark is urgent.
func (k *kernel) hand(name string) *Pending {
	return k.add(Call{What: name, Owner: name[:1], Urgent: name[len(name)-1] == '!'})
}

func (k *kernel) add(c Call) *Pending {
	may := make(chan bool)
	k.may[c.What] = may
	c.Run = func() {
		k.mu.Lock()
		k.began = append(k.began, c.What)
		k.mu.Unlock()
		<-may
	}
	one := k.Add(c)
	synctest.Wait()
	return one
}

// ends has the kernel answer a call that began.
func (k *kernel) ends(name string) {
	k.may[name] <- true
	synctest.Wait()
}

// finish ends whatever is left.
func (k *kernel) finish() {
	ended := 0
	for ended < len(k.began) {
		if name := k.began[ended]; k.may[name] != nil {
			select {
			case k.may[name] <- true:
			default:
			}
			synctest.Wait()
		}
		ended++
	}
	k.Close()
}

func TestOwnersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		for _, name := range []string{"a1", "a2", "a3", "b1", "a4!", "c1", "a5!"} {
			k.hand(name)
		}
		want := []string{"a1", "a4!", "b1", "c1", "a5!", "a2", "a3"}
		for i, name := range want {
			if !slices.Equal(k.began, want[:i+1]) {
				t.Fatalf("began %q, want %q: one at a time, the urgent ones first of their owner", k.began, want[:i+1])
			}
			k.ends(name)
		}
		k.Close()
		if len(k.turns)+len(k.waiting)+len(k.underWay) != 0 {
			t.Errorf("an empty queue remembers %v %v %v", k.turns, k.waiting, k.underWay)
		}
	})
}

func TestACallIsDoneOnlyAfterTheKernelAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		first, second := k.hand("a1"), k.hand("a2")
		if first.IsDone() || second.IsDone() || k.Waiting("a") != 2 {
			t.Fatalf("done: %v, %v; %d wait, want none done and 2", first.IsDone(), second.IsDone(), k.Waiting("a"))
		}
		k.ends("a1")
		if !first.IsDone() || second.IsDone() {
			t.Errorf("done: %v, %v, want the first alone", first.IsDone(), second.IsDone())
		}
		if k.woken != 0 {
			t.Error("the loop is woken before the owner's calls ended")
		}
		k.ends("a2")
		if k.woken != 1 {
			t.Error("the loop is not woken when the owner's calls ended")
		}
		k.hand("b1!")
		k.hand("b2!")
		if k.ends("b1!"); k.woken != 2 {
			t.Error("the loop is not woken when an urgent call ended")
		}
		k.ends("b2!")
		if none := (*Pending)(nil); !none.IsDone() {
			t.Error("what is not called is not done")
		}
	})
}

// TestWhoWaitsIsNotWokenBesides has the loop wait for a call itself.
func TestWhoWaitsIsNotWokenBesides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		one := k.add(Call{What: "a1", Owner: "a", Urgent: true, Awaited: true})
		go func() { k.may["a1"] <- true }()
		if !k.Await(one, time.Second) || k.woken != 0 {
			t.Errorf("it was woken %d times, want the answer alone", k.woken)
		}
		if one = k.add(Call{What: "a2", Owner: "a", Urgent: true, Awaited: true}); k.Await(one, time.Second) {
			t.Error("there is an answer before the kernel gave one")
		}
		if k.ends("a2"); k.woken != 1 {
			t.Errorf("it was woken %d times by a call that it does not wait for any more, want once", k.woken)
		}
	})
}

func TestACallIsCancelledUntilItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		first, second := k.hand("a1"), k.hand("a2")
		if k.Cancel(first) || !k.Cancel(second) || k.Cancel(second) {
			t.Error("want the second alone to be cancelled, once")
		}
		k.ends("a1")
		k.Close()
		if !slices.Equal(k.began, []string{"a1"}) || len(k.turns)+len(k.waiting) != 0 {
			t.Errorf("began %q, and %v is left; want the first alone", k.began, k.waiting)
		}
	})
}

func TestOwnersAreServedTogetherWhereTheyMayBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.Together = true
		for _, name := range []string{"a1", "a2", "b1"} {
			k.hand(name)
		}
		if !slices.Equal(k.began, []string{"a1", "b1"}) {
			t.Errorf("began %q, want one of each owner", k.began)
		}
		for _, name := range []string{"b1", "a1", "a2"} {
			k.ends(name)
		}
		k.Close()
	})
}

func TestAnOwnerHasABoundedShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		defer k.finish()
		give := func(owner string) (n int) {
			for k.HasRoom(owner, false) {
				k.hand(owner + string(rune('A'+n)))
				n++
			}
			return n
		}
		got := []int{}
		for _, owner := range []string{"a", "b", "c", "d", "e", "f"} {
			got = append(got, give(owner))
		}
		if want := []int{16, 16, 16, 16, 1, 1}; !slices.Equal(got, want) {
			t.Errorf("owners may hand over %v links, want %v", got, want)
		}
		// An owner that has all of its share may still replace one link, and no second one before that ended.
		if !k.HasRoom("a", true) {
			t.Fatal("no link can be replaced")
		}
		k.hand("a!")
		if k.HasRoom("a", true) || !k.HasRoom("b", true) {
			t.Error("a second link is replaced while the first runs beside its successor")
		}
	})
}

// TestACallThatHangsDelaysItsOwnerAlone has the kernel not answer for some owners.
func TestACallThatHangsDelaysItsOwnerAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		defer k.finish()
		for _, name := range []string{"a1", "a2", "b1"} {
			k.hand(name)
		}
		k.Continue()
		synctest.Wait()
		if !slices.Equal(k.began, []string{"a1"}) {
			t.Fatalf("began %q, want the first alone", k.began)
		}
		k.now = k.now.Add(slowCall + time.Second)
		k.Continue()
		synctest.Wait()
		if !slices.Equal(k.began, []string{"a1", "b1"}) {
			t.Fatalf("began %q, want that of the other owner beside the one that hangs", k.began)
		}
		for owner := range 2 * maxUnderWay {
			k.hand(string([]byte{byte('c' + owner), '1'}))
			k.now = k.now.Add(slowCall + time.Second)
			k.Continue()
			synctest.Wait()
		}
		if len(k.began) != maxUnderWay {
			t.Errorf("%d closes are under way, want %d", len(k.began), maxUnderWay)
		}
	})
}
