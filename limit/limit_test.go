package limit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// taking is an Acquire that may wait.
type taking struct {
	give func()
	err  error
	over bool
}

func (s *PerName) taken(ctx context.Context, name string, weight, most int64) *taking {
	var t taking
	go func() {
		t.give, t.err = s.Acquire(ctx, name, weight, most)
		t.over = true
	}()
	synctest.Wait()
	return &t
}

// uses compares who uses what with what is wanted.
func (s *PerName) uses(t *testing.T, want map[string]int) {
	t.Helper()
	if diff := cmp.Diff(want, s.Users()); diff != "" {
		t.Error(diff)
	}
}

func TestANameWaitsForItsShareAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s PerName
		first, second := s.taken(t.Context(), "a", 2, 5), s.taken(t.Context(), "a", 3, 5)
		waits := s.taken(t.Context(), "a", 2, 5)
		other := s.taken(t.Context(), "b", 5, 5)
		if !first.over || !second.over || waits.over || !other.over {
			t.Fatalf("over: %v, %v, %v and of another %v, want all but the third", first.over, second.over, waits.over, other.over)
		}
		s.uses(t, map[string]int{"a": 3, "b": 1})
		first.give()
		synctest.Wait()
		if !waits.over || waits.err != nil {
			t.Errorf("what waits for as much as was given back: %v, %v", waits.over, waits.err)
		}
		second.give()
		waits.give()
		other.give()
		s.uses(t, map[string]int{})
	})
}

func TestWhatIsGivenBackTwiceIsThereOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s PerName
		first, second := s.taken(t.Context(), "a", 1, 2), s.taken(t.Context(), "a", 1, 2)
		first.give()
		first.give()
		third, fourth := s.taken(t.Context(), "a", 1, 2), s.taken(t.Context(), "a", 1, 2)
		if !third.over || fourth.over {
			t.Errorf("over: %v, %v; want that one of two is there", third.over, fourth.over)
		}
		second.give()
		third.give()
		synctest.Wait()
		fourth.give()
		s.uses(t, map[string]int{})
	})
}

// TestAShareIsKeptForWhoWaits: were it forgotten with who had all of it, who comes
// next would find another one.
func TestAShareIsKeptForWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s PerName
		first := s.taken(t.Context(), "a", 1, 1)
		second := s.taken(t.Context(), "a", 1, 1)
		first.give()
		synctest.Wait()
		third := s.taken(t.Context(), "a", 1, 1)
		if !second.over || third.over {
			t.Errorf("over: %v, %v; want the second alone", second.over, third.over)
		}
		second.give()
		synctest.Wait()
		third.give()
		s.uses(t, map[string]int{})
	})
}

func TestWhoAsksForMoreThanAllTakesAll(t *testing.T) {
	for name, most := range map[string]int64{"a share of three": 3, "a share of nothing is one of 1": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s PerName
				large := s.taken(t.Context(), "a", 10, most)
				small := s.taken(t.Context(), "a", 1, most)
				if !large.over || small.over {
					t.Fatalf("over: %v, %v; want that all is taken", large.over, small.over)
				}
				large.give()
				synctest.Wait()
				small.give()
				s.uses(t, map[string]int{})
			})
		})
	}
}

func TestWhoWaitsNoLongerTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s PerName
		first := s.taken(t.Context(), "a", 1, 2)
		ctx, leave := context.WithCancel(t.Context())
		impatient := s.taken(ctx, "a", 2, 2)
		leave()
		synctest.Wait()
		if !errors.Is(impatient.err, context.Canceled) || impatient.give != nil {
			t.Errorf("%v, want the context's end", impatient.err)
		}
		s.uses(t, map[string]int{"a": 1})
		if next := s.taken(t.Context(), "a", 1, 2); !next.over {
			t.Error("what nobody waits for any more is waited for")
		} else {
			next.give()
		}
		first.give()
		s.uses(t, map[string]int{})
	})
}
