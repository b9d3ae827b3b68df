package closing

import (
	"io"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// kernel closes links when it is told to.
type kernel struct {
	*Queue
	now   time.Time
	began []string
	may   map[string]chan error
}

func newKernel() *kernel {
	k := &kernel{may: map[string]chan error{}}
	k.Queue = NewQueue(func() time.Time { return k.now }, slog.New(slog.DiscardHandler))
	return k
}

// closer is a link, which is closed when its name may.
type closer func() error

func (c closer) Close() error { return c() }

// hand hands over a link of the owner that is the first letter of its name. One with an
// exclamation mark was replaced.
func (k *kernel) hand(name string) *Closing {
	may := make(chan error)
	k.may[name] = may
	is := closer(func() error {
		k.began = append(k.began, name)
		return <-may
	})
	one := k.Add(Link{Closer: is, What: name, Owner: name[:1], Replaced: name[len(name)-1] == '!'})
	synctest.Wait()
	return one
}

// ends has the kernel end a link whose close began.
func (k *kernel) ends(name string, err error) {
	k.may[name] <- err
	synctest.Wait()
}

// finish ends whatever is left.
func (k *kernel) finish() {
	ended := 0
	for ended < len(k.began) {
		if name := k.began[ended]; k.may[name] != nil {
			select {
			case k.may[name] <- nil:
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
		for _, name := range []string{"a1", "a2", "a3", "b1", "a4!", "c1"} {
			k.hand(name)
		}
		want := []string{"a1", "a4!", "b1", "c1", "a2", "a3"}
		for i, name := range want {
			if !slices.Equal(k.began, want[:i+1]) {
				t.Fatalf("began %q, want %q: one at a time, what was replaced first of its owner", k.began, want[:i+1])
			}
			k.ends(name, nil)
		}
		k.Close()
		if len(k.turns)+len(k.waiting)+len(k.underWay) != 0 {
			t.Errorf("an empty queue remembers %v %v %v", k.turns, k.waiting, k.underWay)
		}
	})
}

func TestALinkIsDoneOnlyAfterTheKernelAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		first, second := k.hand("a1"), k.hand("a2")
		if first.IsDone() || second.IsDone() || k.Waiting("a") != 2 {
			t.Fatalf("done: %v, %v; %d wait, want none done and 2", first.IsDone(), second.IsDone(), k.Waiting("a"))
		}
		k.ends("a1", io.ErrClosedPipe)
		if !first.IsDone() || second.IsDone() {
			t.Errorf("done: %v, %v, want the first alone", first.IsDone(), second.IsDone())
		}
		select {
		case <-k.Ended():
			t.Error("the loop is woken before the owner's links ended")
		default:
		}
		k.ends("a2", nil)
		select {
		case <-k.Ended():
		default:
			t.Error("the loop is not woken when the owner's links ended")
		}
		if none := (*Closing)(nil); !none.IsDone() {
			t.Error("what is not being closed is not done")
		}
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
		// Whoever has all of its share may still replace one link, and no second one before that ended.
		if !k.HasRoom("a", true) {
			t.Fatal("no link can be replaced")
		}
		k.hand("a!")
		if k.HasRoom("a", true) || !k.HasRoom("b", true) {
			t.Error("a second link is replaced while the first runs beside its successor")
		}
	})
}

// TestACloseThatHangsDelaysItsOwnerAlone has the kernel not answer for some owners.
func TestACloseThatHangsDelaysItsOwnerAlone(t *testing.T) {
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
		k.now = k.now.Add(slowClose + time.Second)
		k.Continue()
		synctest.Wait()
		if !slices.Equal(k.began, []string{"a1", "b1"}) {
			t.Fatalf("began %q, want that of the other owner beside the one that hangs", k.began)
		}
		for owner := range 2 * maxUnderWay {
			k.hand(string([]byte{byte('c' + owner), '1'}))
			k.now = k.now.Add(slowClose + time.Second)
			k.Continue()
			synctest.Wait()
		}
		if len(k.began) != maxUnderWay {
			t.Errorf("%d closes are under way, want %d", len(k.began), maxUnderWay)
		}
	})
}
