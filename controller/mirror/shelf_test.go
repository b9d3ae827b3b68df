package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/skep-dev/skep/image"
)

// cached counts how often each object is read.
type cached struct {
	mu    sync.Mutex
	reads map[string]int
}

func newCached() *cached { return &cached{reads: map[string]int{}} }

func (c *cached) reader(digest string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reads[digest]++
		return []byte(digest), nil
	}
}

func TestAnObjectStandsInMemoryOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shelf
		c := newCached()
		var back []func()
		for range 100 {
			object, giveBack, err := s.lend(t.Context(), "one", c.reader("one"))
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
		if _, giveBack, err := s.lend(t.Context(), "one", c.reader("one")); err != nil || c.reads["one"] != 2 {
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
			_, giveBack, err := s.lend(t.Context(), digest, c.reader(digest))
			if err != nil {
				t.Fatal(err)
			}
			back = append(back, giveBack)
		}
		impatient, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, _, err := s.lend(impatient, "more", c.reader("more"))
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
		if object, giveBack, err := s.lend(t.Context(), "3", c.reader("3")); err != nil || string(object) != "3" {
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
		if _, giveBack, err := s.lend(t.Context(), "more", c.reader("more")); err != nil {
			t.Errorf("who asks again: %v", err)
		} else {
			giveBack()
		}
	})
}

// TestWhatCouldNotBeHadIsReadAnew: somebody who was told so may still be at it when
// it can be had again.
func TestWhatCouldNotBeHadIsReadAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shelf
		failed := s.hold(t.Context(), "one", func(context.Context) ([]byte, error) { return nil, image.ErrNotFound })
		<-failed.ready
		c := newCached()
		_, giveBack, err := s.lend(t.Context(), "one", c.reader("one"))
		if err != nil {
			t.Fatal(err)
		}
		s.giveBack("one", failed)
		_, again, err := s.lend(t.Context(), "one", c.reader("one"))
		if err != nil || c.reads["one"] != 1 {
			t.Fatalf("%d reads, %v; want that it is out still", c.reads["one"], err)
		}
		giveBack()
		again()
		if len(s.out) != 0 || len(s.slots) != 0 {
			t.Errorf("%d objects and %d slots are left", len(s.out), len(s.slots))
		}
	})
}
