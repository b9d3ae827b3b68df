package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/skep-dev/skep/bytecode/image"
)

// cached counts how often each object is read. What is in lost comes by a fill,
// which waits for filled.
type cached struct {
	mu     sync.Mutex
	reads  map[string]int
	lost   map[string]bool
	filled chan struct{}
}

func newCached(lost ...string) *cached {
	c := &cached{reads: map[string]int{}, lost: map[string]bool{}, filled: make(chan struct{})}
	for _, digest := range lost {
		c.lost[digest] = true
	}
	return c
}

func (c *cached) source(digest string) source {
	return source{
		read: func(context.Context) ([]byte, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.reads[digest]++
			if c.lost[digest] {
				return nil, fmt.Errorf("read: %w", image.ErrNotFound)
			}
			return []byte(digest), nil
		},
		fill: func(ctx context.Context) error {
			select {
			case <-c.filled:
			case <-ctx.Done():
				return ctx.Err()
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.lost, digest)
			return nil
		},
	}
}

func TestAnObjectStandsInMemoryOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shelf
		c := newCached()
		var back []func()
		for range 100 {
			object, giveBack, err := s.lend(t.Context(), "one", c.source("one"))
			if err != nil || string(object) != "one" {
				t.Fatalf("lend = %q, %v", object, err)
			}
			back = append(back, giveBack)
		}
		synctest.Wait()
		if c.reads["one"] != 1 {
			t.Errorf("it was read %d times while it was out", c.reads["one"])
		}
		for _, giveBack := range back {
			giveBack()
		}
		if len(s.out) != 0 || len(s.slots) != 0 {
			t.Errorf("%d objects and %d slots are left when all was given back", len(s.out), len(s.slots))
		}
		if _, giveBack, err := s.lend(t.Context(), "one", c.source("one")); err != nil || c.reads["one"] != 2 {
			t.Errorf("%d reads, %v; want it read anew", c.reads["one"], err)
		} else {
			giveBack()
		}
	})
}

func TestFewObjectsAreOutAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shelf
		c := newCached()
		var back []func()
		for i := range outAtOnce {
			digest := fmt.Sprint(i)
			_, giveBack, err := s.lend(t.Context(), digest, c.source(digest))
			if err != nil {
				t.Fatal(err)
			}
			back = append(back, giveBack)
		}
		impatient, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, _, err := s.lend(impatient, "more", c.source("more"))
			left <- err
		}()
		synctest.Wait()
		if c.reads["more"] != 0 {
			t.Error("one more than may be was read")
		}
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who went away: %v", err)
		}
		synctest.Wait()
		if len(s.out) != outAtOnce {
			t.Errorf("%d objects are out or waited for, with %d held", len(s.out), outAtOnce)
		}
		if object, giveBack, err := s.lend(t.Context(), "3", c.source("3")); err != nil || string(object) != "3" {
			t.Errorf("what is out is lent to one more: %q, %v", object, err)
		} else {
			giveBack()
		}
		for _, giveBack := range slices.Backward(back) {
			giveBack()
		}
		synctest.Wait()
		if len(s.out) != 0 || len(s.slots) != 0 {
			t.Errorf("%d objects and %d slots are left", len(s.out), len(s.slots))
		}
		if c.reads["more"] != 0 {
			t.Error("what nobody waits for any more was read")
		}
		if _, giveBack, err := s.lend(t.Context(), "more", c.source("more")); err != nil {
			t.Errorf("who asks again: %v", err)
		} else {
			giveBack()
		}
	})
}

// TestAFillGoesOnWhereNobodyWaitsForIt: registries are slower than agents are
// patient, and these ask again.
func TestAFillGoesOnWhereNobodyWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shelf
		c := newCached("one")
		impatient, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, _, err := s.lend(impatient, "one", c.source("one"))
			left <- err
		}()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who went away: %v", err)
		}
		synctest.Wait()
		close(c.filled)
		synctest.Wait()
		if c.lost["one"] || len(s.out) != 0 || len(s.slots) != 0 {
			t.Errorf("lost still: %v; %d objects and %d slots are left", c.lost["one"], len(s.out), len(s.slots))
		}
	})
}

func TestWhatIsFetchedKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shelf
		lost := make([]string, outAtOnce)
		for i := range lost {
			lost[i] = fmt.Sprint(i)
		}
		c := newCached(lost...)
		got := make(chan error)
		for _, digest := range lost {
			go func() {
				_, giveBack, err := s.lend(t.Context(), digest, c.source(digest))
				if err == nil {
					giveBack()
				}
				got <- err
			}()
		}
		synctest.Wait()
		if _, giveBack, err := s.lend(t.Context(), "here", c.source("here")); err != nil {
			t.Errorf("while registries hang: %v", err)
		} else {
			giveBack()
		}
		close(c.filled)
		for range lost {
			if err := <-got; err != nil {
				t.Error(err)
			}
		}
	})
}
