package ui

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a source that takes a second, and says how often it was asked.
type slow struct {
	asked int
	err   error
}

func (s *slow) read(ctx context.Context) (any, error) {
	s.asked++
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Second):
		return s.asked, s.err
	}
}

func TestTheSourceIsAskedOnceForAllTabs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAnswers(), &slow{}
		var tabs sync.WaitGroup
		for range 10 {
			tabs.Go(func() {
				for range 10 {
					if got := a.get(t.Context(), "key", every, s.read); got.err != nil {
						t.Error(got.err)
					}
					<-time.After(100 * time.Millisecond)
				}
			})
		}
		tabs.Wait()
		// A second for the first answer and another for the tabs' pauses: it is not old yet.
		if s.asked != 1 {
			t.Errorf("the source was asked %d times", s.asked)
		}
		// It took a second, and is left alone for four.
		<-time.After(3*time.Second - time.Millisecond)
		if got := a.get(t.Context(), "key", every, s.read); string(got.body) != "1" {
			t.Errorf("an answer that took long is %s", got.body)
		}
		<-time.After(time.Millisecond)
		if got := a.get(t.Context(), "key", every, s.read); string(got.body) != "2" {
			t.Errorf("an old answer is %s", got.body)
		}
	})
}

func TestATabThatClosesBreaksNothingOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAnswers(), &slow{}
		ctx, cancel := context.WithCancel(t.Context())
		go a.get(ctx, "key", every, s.read)
		synctest.Wait()
		cancel()
		if got := a.get(t.Context(), "key", every, s.read); got.err != nil || s.asked != 1 {
			t.Errorf("the other tab has %v, after %d requests", got.err, s.asked)
		}
	})
}

func TestWhatWasReadAheadIsShownOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAnswers(), &slow{}
		a.prepare(t.Context(), "key", s.read)
		<-time.After(30 * time.Second)
		for _, want := range []string{"1", "2"} {
			if got := a.get(t.Context(), "key", every, s.read); string(got.body) != want {
				t.Errorf("it is %s, want %s", got.body, want)
			}
		}
		s.err = errors.New("away")
		a.prepare(t.Context(), "other", s.read)
		s.err = nil
		<-time.After(every)
		if got := a.get(t.Context(), "other", every, s.read); got.err != nil {
			t.Errorf("an error that was read ahead is shown: %v", got.err)
		}
	})
}

// TestASourceThatHangsIsSaid to each browser that asks, and one of them alone asks it.
func TestASourceThatHangsIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, asked, awake := newAnswers(), 0, make(chan struct{})
		hang := func(context.Context) (any, error) {
			asked++
			<-awake
			return asked, nil
		}
		for range 3 {
			began := time.Now()
			if got := a.get(t.Context(), "key", every, hang); !errors.Is(got.err, errHangs) || time.Since(began) != waiting {
				t.Errorf("it answers %s, %v after %s", got.body, got.err, time.Since(began))
			}
		}
		close(awake)
		synctest.Wait()
		if got := a.get(t.Context(), "key", every, hang); got.err != nil || asked != 1 {
			t.Errorf("it answers %v after %d requests", got.err, asked)
		}
	})
}

// TestLargeAnswersAreDropped where all have more bytes than are kept, the one that was not asked for longest first.
func TestLargeAnswersAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswers()
		large := func(context.Context) (any, error) { return strings.Repeat(" ", maxAllBytes/3), nil }
		for _, key := range []string{"first", "second", "first", "third"} {
			if got := a.get(t.Context(), key, every, large); got.err != nil {
				t.Error(got.err)
			}
		}
		if got := a.cells.Keys(); !slices.Equal(got, []string{"first", "third"}) || a.bytes > maxAllBytes {
			t.Errorf("%q are kept, of %d bytes", got, a.bytes)
		}
	})
}

func TestAnswersAreBounded(t *testing.T) {
	a := newAnswers()
	for i := range 3 * maxAnswers {
		a.cell(strconv.Itoa(i))
	}
	if n := a.cells.Len(); n != maxAnswers {
		t.Errorf("%d answers are kept", n)
	}
	if got := encode(strings.Repeat(" ", maxBytes), nil, a.seed); got.err == nil || got.body != nil {
		t.Errorf("an answer of %d bytes is kept", len(got.body))
	}
}
