package changes

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/skep-dev/skep/agent/pods/containers"
)

// TestHintsAreGatheredAndSignalsAreNot has pods, devices and pins change after a reconcile began.
func TestHintsAreGatheredAndSignalsAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		asked := func(what string, want bool) {
			t.Helper()
			synctest.Wait()
			if is := len(c.C()) == 1; is != want {
				t.Errorf("%s: a reconcile is asked for: %v, want %v", what, is, want)
			}
			for len(c.C()) > 0 {
				<-c.C()
			}
		}
		hints := func() {
			c.devices()
			c.AskPins()
			c.Hint()
		}
		hints()
		asked("a hint long after the last reconcile", true)
		c.Begin()
		hints()
		asked("hints after one began", false)
		c.Signal()
		asked("a signal after that", true)
		c.Pods(containers.Pod{})
		asked("a change of pods, before any are chosen", true)
		<-time.After(c.Pause - 1)
		asked("less than the pause later", false)
		<-time.After(1)
		asked("the pause later", true)
		hints()
		asked("a hint where none has begun since", true)
		c.Begin()
		hints()
		<-time.After(c.Pause / 2)
		c.Begin()
		<-time.After(c.Pause)
		asked("the pause after one that began after the hints", false)
	})
}

func TestPinsAreFollowedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Watch{}
		for i, want := range []time.Duration{0, time.Second, time.Second / 4, 0} {
			if got := w.FollowsIn(); got != want {
				t.Errorf("look %d: pins are followed in %v, want %v", i, got, want)
			}
			if i == 0 {
				w.FollowPins()
				continue
			}
			<-time.After(3 * time.Second / 4)
		}
	})
}
